"""Programs of agent frameworks, and plain ones, run unchanged under the launcher: seen whole, counted right, and stopped."""

import os

import pytest

if not os.environ.get("RAVI_TEST_FRAMEWORKS"):
    pytest.skip("make frameworks runs these, in an environment of their own", allow_module_level=True)

from framework_programs import ALL, EVERYTHING, LIMITS, TOKENS
from story import COST, TOOLS, USAGE

# All of them are started at the first test, and it waits for one of them.
pytestmark = pytest.mark.timeout(600)
STOPPED = 4


def only(**facts):
    """Try it with the programs of which these facts are true."""
    chosen = [each for each in ALL if all(getattr(each, name) == value for name, value in facts.items())]
    return pytest.mark.parametrize("program", chosen, ids=lambda program: program.name)


HOLDS = [(each, kind) for each in ALL for kind in LIMITS if (each.knows_tools or kind != "tool_calls") and (each.agents or kind != "agent")]
"""All but limits on tools whose results are text among others to the model, and on agents, where no adapter tells of them."""


@pytest.fixture(params=ALL, ids=lambda program: program.name)
def program(request):
    return request.param


@pytest.fixture
def alone(program):
    seen = EVERYTHING.of(program, "alone")
    assert (seen.done.status, seen.sent) == (0, program.requests), seen.done.err
    return seen


@pytest.fixture
def launched(program):
    return EVERYTHING.of(program, "launched")


def test_it_does_what_it_does_without_us(alone, launched):
    assert (launched.done.out, launched.done.status, launched.sent) == (alone.done.out, alone.done.status, alone.sent), launched.done.err
    assert launched.done.err == alone.done.err


def test_each_call_is_in_the_tree_with_what_the_model_told(program, launched):
    assert [(call["status"], call["usage_source"]) for call in launched.calls] == [("ok", "reported")] * launched.sent
    assert {(call["input_tokens"], call["output_tokens"], round(call["cost_usd"], 9)) for call in launched.calls} == {(*USAGE, COST)}
    root = launched.root
    assert (root["requests"], root["turns"], root["refused"], root["errors"]) == (launched.sent, launched.sent, 0, 0)
    assert (root["input_tokens"], root["output_tokens"]) == (USAGE[0] * launched.sent, USAGE[1] * launched.sent)
    assert root["cost_usd"] == pytest.approx(COST * launched.sent)


def test_each_call_has_a_span_in_the_store(program, launched):
    told = [said for _, said in launched.spans if "gen_ai.usage.input_tokens" in said and said.get("gen_ai.operation.name") == "chat"]
    assert [int(said["gen_ai.usage.input_tokens"]) for said in told] == [USAGE[0]] * launched.sent
    assert {said["gen_ai.request.model"] for said in told} == {"gpt-4.1-mini"}


def test_its_tools_are_in_the_tree_although_nobody_marked_them(program, launched):
    assert launched.tools == program.tools
    assert launched.root["tool_calls"] == program.tools.total()


def test_what_belongs_to_a_process_hangs_below_it(program, launched):
    parents = {node["parent"] for node in launched.report["nodes"] if node["type"] in ("call", "tool")}
    kinds = {launched.report["nodes"][parent]["type"] for parent in parents}
    processes = program.conversations if program.name == "plain_workers" else 0
    assert kinds == {"process" if processes else "agent" if program.agents else "run"}
    assert len(parents) == max(1, processes, len(program.agents))


def test_its_agents_are_in_the_tree_by_name_with_what_each_used(program, launched):
    assert launched.agents == program.agents
    agents = [node for node in launched.report["nodes"] if node["type"] == "agent"]
    assert sum(node["requests"] for node in agents) == (launched.sent if agents else 0)
    assert sum(node["tool_calls"] for node in agents) == (program.tools.total() if agents else 0)
    assert {node["status"] for node in agents} <= {"ok"}


@only(follows=True)
def test_a_tool_that_is_seen_to_run_is_not_inferred_besides(program, launched):
    assert launched.tools == program.tools
    inferred = {name for name, said in launched.spans if said.get("ravi.tool.inferred") is True}
    assert inferred <= {f"execute_tool {program.handoff}"}


@only(conversations=1)  # several at once are told in the order in which they happened
def test_the_tools_of_one_conversation_stand_between_its_calls(program, launched):
    told = [node for node in launched.report["nodes"] if node["type"] in ("tool", "call")]
    names = [node["name"] if node["type"] == "tool" else "call" for node in told]
    between = "|".join(names).strip("|").split("call")
    steps = [sorted(filter(None, each.split("|"))) for each in between][1:-1]
    every = [sorted(TOOLS)] * (len(steps) - program.hands_over) if program.knows_tools else [[]] * len(steps)
    assert steps == ([[program.handoff]] if program.hands_over else []) + every


@pytest.mark.parametrize(("program", "kind"), HOLDS, ids=lambda each: getattr(each, "name", each))
def test_past_a_limit_nothing_is_sent_and_the_program_is_ended(program, kind):
    limited = EVERYTHING.of(program, kind)
    assert limited.done.status == STOPPED, limited.done.err
    assert limited.report["outcome"] == "stopped"
    assert 1 <= limited.sent <= program.may_send(kind)
    assert limited.root["refused"] >= 1
    counted = "requests" if kind == "agent" else kind
    assert (limited.limit["limit"], limited.limit["denied"] >= 1, limited.limit["held"]) == (counted, True, 0)


def test_requests_are_held_to_the_very_number(program):
    limited = EVERYTHING.of(program, "requests")
    assert limited.sent == limited.limit["used"] == limited.root["requests"] == LIMITS["requests"]


@only(tells_results=True, follows=False)
def test_every_tool_that_ran_is_counted_also_past_the_limit(program):
    limited = EVERYTHING.of(program, "tool_calls")
    assert limited.limit["used"] == limited.root["tool_calls"] == limited.tools.total()
    assert 0 < limited.limit["used"] - LIMITS["tool_calls"] <= len(TOOLS) * program.conversations


@only(follows=True)
def test_a_tool_that_is_followed_does_not_run_past_its_limit(program):
    limited = EVERYTHING.of(program, "tool_calls")
    assert limited.limit["used"] == limited.root["tool_calls"] == LIMITS["tool_calls"]
    assert limited.tools.total() > limited.limit["used"]
    assert limited.root["refused"] >= 1


@pytest.mark.parametrize(("kind", "each"), [("requests", 1), ("tokens", TOKENS), ("cost", COST)])
def test_what_a_limit_counted_is_what_was_sent(program, kind, each):
    limited = EVERYTHING.of(program, kind)
    assert [call["usage_source"] for call in limited.calls] == ["reported"] * limited.sent
    assert limited.limit["used"] == pytest.approx(each * limited.sent)
    assert limited.root["input_tokens"] + limited.root["output_tokens"] == TOKENS * limited.sent
