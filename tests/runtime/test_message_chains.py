"""A conversation that the provider keeps counts with every message we saw of it."""

import pytest

import ravi_otel
from ravi_otel import BudgetExhaustedError, message_limit
from ravi_otel._runtime.background_calls import LONGEST_MEMORY, Conversations, key_of
from ravi_otel.policy._usage import Call
from ravi_otel.testing import Text


@pytest.fixture(autouse=True)
def _answer(stage):
    stage.answer = Text("ok", usage=(10, 10))


def respond(client, **more):
    """Ask for a response; give its id, of a stream that of its last event."""
    answer = client.responses.create(model="gpt-4o-mini", input="a", **more)
    return list(answer)[-1].response.id if more.get("stream") else answer.id


@pytest.mark.parametrize("stream", [False, True])
def test_each_answer_in_a_chain_counts_with_those_before_it(client, stage, stream):
    with ravi_otel.run("r", limits=[message_limit(4)]) as run:
        first = respond(client, stream=stream, instructions="Be brief.")
        second = respond(client, stream=stream, previous_response_id=first)
        assert run.limits[0].used == 4
        with pytest.raises(BudgetExhaustedError, match=r"^4 messages are allowed in run .*; this call makes it 6 and is refused \(6 > 4\)"):
            respond(client, previous_response_id=second)
        respond(client, previous_response_id=first)
    assert stage.sent == 3


def test_instructions_are_not_inherited_and_count_with_their_own_request(client):
    with ravi_otel.run("r", limits=[message_limit(20)]) as run:
        name = respond(client, instructions="Be brief.")
        assert run.limits[0].used == 3
        respond(client, previous_response_id=name, instructions="Be brief.")
    assert run.limits[0].used == 5


def test_a_conversation_named_by_its_id_grows_with_each_request(client):
    with ravi_otel.run("r", limits=[message_limit(5)]) as run:
        for _ in range(2):
            respond(client, extra_body={"conversation": "conv_of_this_test"})
        assert run.limits[0].used == 4
        with pytest.raises(BudgetExhaustedError):
            respond(client, extra_body={"conversation": "conv_of_this_test"})


def test_a_chain_we_never_saw_counts_its_own_messages(client):
    with ravi_otel.run("r", limits=[message_limit(2)]) as run:
        respond(client, previous_response_id="resp_of_somebody_else")
    assert run.limits[0].used == 2


def test_only_so_many_conversations_are_remembered_and_those_used_last_stay():
    seen, call = Conversations(), Call("chat", "responses", messages=1)
    for number in range(LONGEST_MEMORY + 10):
        seen.heard(call, f"resp_{number}", 1)
        assert seen.before(key_of(call, "resp_0")) == 2
    assert len(seen) == LONGEST_MEMORY
    assert seen.before(key_of(call, "resp_5")) == 0
