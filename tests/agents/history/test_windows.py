"""What a window keeps of any conversation."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ravi_otel._instrumentation.formats.chat import CHAT
from ravi_otel._instrumentation.formats.format import Host, Request
from ravi_otel.agents.history import SlidingWindow, TokenWindow, tokens_of
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy._contracts import ChatMessage, CompactionStrategy

STEADY = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}
STANDING = ("system", "developer")


def exchange(number, calls, text=None):
    """Make an assistant's message with tool calls, and their results."""
    ids = [f"c{number}.{call}" for call in range(calls)]
    asked = tuple({"id": each, "type": "function", "function": {"name": "look", "arguments": "{}"}} for each in ids)
    return [
        ChatMessage("assistant", text, tool_calls=asked),
        *(ChatMessage("tool", f"found {each}" * 5, tool_call_id=each) for each in ids),
    ]


@st.composite
def conversations(draw):
    """Make a conversation as agents have them, then perhaps tear pieces out of it, as crashes and bounds do."""
    found = []
    for number in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from(["user", "user", "system", "developer", "answer", "tools", "tools"]))
        text = f"{number} " + draw(st.text(max_size=30))
        if kind == "tools":
            found.extend(exchange(number, draw(st.integers(1, 3)), draw(st.sampled_from([None, text]))))
        else:
            found.append(ChatMessage("assistant" if kind == "answer" else kind, text))
    torn = draw(st.sets(st.integers(0, max(0, len(found) - 1)), max_size=3)) if draw(st.booleans()) else set()
    return [message for at, message in enumerate(found) if at not in torn]


def is_accepted(messages):
    """Tell what a provider checks: each call has its one result right behind, and each result its call."""
    waiting = []
    for message in messages:
        if message.role == "tool":
            if message.tool_call_id not in waiting:
                return False
            waiting.remove(message.tool_call_id)
        elif waiting:
            return False
        else:
            waiting = [call["id"] for call in message.tool_calls]
    return not waiting


def is_part_of(kept, whole):
    rest = iter(whole)
    return all(any(each is message for message in rest) for each in kept)


def cut(window, messages):
    return anyio.run(window.compact, messages)


def sound(messages):
    """Return what any window leaves of a conversation at most."""
    return SlidingWindow(10_000).cut(messages)


def turns_of(whole):
    """Return each turn's exchanges: an assistant's tool calls stand in one with their results, every other message alone."""
    turns = []
    for message in whole:
        if message.role in STANDING:
            continue
        if message.role == "tool":
            turns[-1][-1].append(message)
            continue
        if message.role == "user" or not turns:
            turns.append([])
        turns[-1].append([message])
    return turns


@settings(max_examples=120, **STEADY)
@given(conversations())
def test_a_sound_conversation_is_one_that_a_provider_takes_and_stays_as_it_is(messages):
    found = sound(messages)
    assert is_accepted(found)
    assert sound(found) == found
    assert [message for message in found if message.role in STANDING] == [message for message in messages if message.role in STANDING]
    assert [message.content for message in found if message.role == "user"] == [each.content for each in messages if each.role == "user"]
    if is_accepted(messages):
        assert found == messages


@settings(max_examples=120, **STEADY)
@given(conversations(), st.integers(1, 5))
def test_a_sliding_window_keeps_the_newest_turns_whole_and_every_system_message(messages, turns):
    whole = sound(messages)
    kept = SlidingWindow(turns).cut(whole)
    assert is_accepted(kept)
    assert is_part_of(kept, whole)
    assert [each for each in kept if each.role in STANDING] == [each for each in whole if each.role in STANDING]
    said = [message for turn in turns_of(whole)[-turns:] for exchange in turn for message in exchange]
    assert [each for each in kept if each.role not in STANDING] == said
    assert [each.role for each in kept].count("user") <= turns


@settings(max_examples=150, **STEADY)
@given(conversations(), st.integers(1, 400))
def test_a_token_window_fits_unless_the_least_of_a_prompt_does_not(messages, tokens):
    whole = sound(messages)
    kept = TokenWindow(tokens).cut(whole)
    assert is_accepted(kept)
    assert is_part_of(kept, whole)
    standing = [each for each in whole if each.role in STANDING]
    assert [each for each in kept if each.role in STANDING] == standing
    turns = turns_of(whole)
    if not turns:
        assert kept == whole
        return
    first, last = turns[-1][0], turns[-1][-1]
    least = first if first is last else [*first, *last]
    assert all(any(each is message for message in kept) for each in least)
    assert tokens_of(kept) <= max(tokens, tokens_of([*standing, *least]))
    if tokens_of(whole) <= tokens:
        assert kept == whole


@settings(max_examples=60, **STEADY)
@given(conversations(), st.integers(1, 300))
def test_more_room_never_keeps_less(messages, tokens):
    assert len(TokenWindow(tokens).cut(messages)) <= len(TokenWindow(tokens + 50).cut(messages))
    assert len(SlidingWindow(2).cut(messages)) <= len(SlidingWindow(3).cut(messages))


@settings(max_examples=60, **STEADY)
@given(conversations())
def test_tokens_are_those_that_the_admission_of_the_call_counts_on(messages):
    body = {"model": "m", "messages": [message.as_json() for message in messages]}
    host = Host("openai", assumed=False, address=None, port=None)
    call = CHAT.call(Request("post", "/chat/completions", body, host, stream=False))
    assert tokens_of(messages) == call.input_estimate


def test_a_turn_has_all_that_follows_its_question_up_to_the_next_one():
    whole = [
        ChatMessage("system", "be kind"),
        ChatMessage("assistant", "hello"),
        ChatMessage("user", "one"),
        ChatMessage("user", "and more"),
        *exchange(1, 2),
        ChatMessage("assistant", "there"),
        ChatMessage("developer", "be short"),
        ChatMessage("user", "two"),
    ]
    assert [each.content for each in cut(SlidingWindow(1), whole)] == ["be kind", "be short", "two"]
    assert cut(SlidingWindow(2), whole) == [whole[0], *whole[3:]]
    assert cut(SlidingWindow(3), whole) == [whole[0], *whole[2:]]
    assert cut(SlidingWindow(9), whole) == whole


def test_of_one_long_turn_the_question_and_the_newest_exchanges_are_kept():
    whole = [ChatMessage("user", "find them all"), *(message for number in range(40) for message in exchange(number, 1))]
    kept = cut(TokenWindow(tokens_of([whole[0], *whole[-6:]])), whole)
    assert kept == [whole[0], *whole[-6:]]
    assert cut(TokenWindow(1), whole) == [whole[0], *whole[-2:]]


@pytest.mark.parametrize(
    ("messages", "left"),
    [
        ([*exchange(1, 2)[:2]], []),
        ([*exchange(1, 2, "I look")[:2]], ["I look"]),
        ([ChatMessage("tool", "x", tool_call_id="c")], []),
        ([*exchange(1, 1), ChatMessage("tool", "again", tool_call_id="c1.0")], []),
        ([exchange(1, 1)[0], ChatMessage("user", "hm"), exchange(1, 1)[1]], ["hm"]),
        ([ChatMessage("assistant", tool_calls=({"function": {}},)), ChatMessage("tool", "x")], []),
        ([ChatMessage("user", "hm"), ChatMessage("assistant", "yes")], ["hm", "yes"]),
    ],
)
def test_what_a_provider_would_refuse_is_left_out(messages, left):
    found = sound(messages)
    assert [message.content for message in found] == left
    assert not any(message.tool_calls for message in found)


@pytest.mark.parametrize("window", [SlidingWindow(3), TokenWindow(100)])
def test_a_window_is_a_strategy(window):
    assert isinstance(window, CompactionStrategy)
    assert cut(window, []) == []


@pytest.mark.parametrize("make", [SlidingWindow, TokenWindow])
@pytest.mark.parametrize("wrong", [0, -1, True, 2.5, "3", None])
def test_a_window_of_nothing_is_refused(make, wrong):
    with pytest.raises(ConfigurationError, match="must be a whole number from 1"):
        make(wrong)


def test_calls_that_share_an_id_stay_and_are_told_apart():
    call = {"id": "c", "type": "function", "function": {"name": "pay", "arguments": "{}"}}
    other = {**call, "id": "c_2"}
    said = [
        ChatMessage("user", "pay 5 and 7"),
        ChatMessage("assistant", None, tool_calls=(call, call, other)),
        *(ChatMessage("tool", paid, tool_call_id=each) for paid, each in (("5", "c"), ("7", "c"), ("9", "c_2"))),
    ]
    found = sound(said)
    assert is_accepted(found)
    assert [message.content for message in found[2:]] == ["5", "7", "9"]
    assert [message.tool_call_id for message in found[2:]] == [call["id"] for call in found[1].tool_calls]
    assert len({message.tool_call_id for message in found[2:]}) == 3
    assert sound(found) == found
    assert sound(said[:3]) == said[:1]
