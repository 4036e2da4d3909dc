"""Every wrong argument of the front door gives one sentence: the parameter, the value, and the way out."""

import inspect

import pytest

import ravi_otel
from ravi_otel import ConfigurationError, ExecutionBudget, LimitSyntaxError, MissingExtraError, SpawnBudget, request_limit


def work():
    """Stand for a user's function."""


def steps():
    yield


BAD = [
    # run
    (lambda: ravi_otel.run(5), "run(name)", "5", "give"),
    (lambda: ravi_otel.run(""), "run(name)", "''", "give"),
    (lambda: ravi_otel.run("a\nb"), "run(name)", "a\\nb", "printable"),
    (lambda: ravi_otel.run("x" * 257), "run(name)", "xxx", "1 to 256"),
    (lambda: ravi_otel.run(work), "run(name)", "function", "@ravi_otel.run()"),
    (lambda: ravi_otel.run(limits="tokens=5"), "run(limits)", "tokens=5", '["tokens=50k"]'),
    (lambda: ravi_otel.run(limits=request_limit(5)), "run(limits)", "Limit(", "list"),
    (lambda: ravi_otel.run(limits=None), "run(limits)", "None", "list"),
    (lambda: ravi_otel.run(limits=5), "run(limits)", "5", "list"),
    (lambda: ravi_otel.run(limits=[5]), "run(limits)", "5", "token_limit(50_000)"),
    (lambda: ravi_otel.run(limits=["tokns=5"]), "tokns=5", "tokns", "tokens"),
    (lambda: ravi_otel.run(limits=["tokens=-5"]), "tokens=-5", "-5", "tokens="),
    (lambda: ravi_otel.run(budget=5), "run(budget)", "5", "ExecutionBudget(max_tokens=50_000)"),
    (lambda: ravi_otel.run(budget={"max_tokens": 5}), "run(budget)", "max_tokens", "ExecutionBudget(max_tokens=50_000)"),
    (lambda: ravi_otel.run(session_id=5), "run(session_id)", "5", "give"),
    (lambda: ravi_otel.run(session_id=""), "run(session_id)", "''", "give"),
    (lambda: ravi_otel.run(tenant_id=b"t"), "run(tenant_id)", "b't'", "give"),
    (lambda: ravi_otel.run(run_id=5), "run(run_id)", "5", "give"),
    (lambda: ravi_otel.run(spawn_budget=5), "run(spawn_budget)", "5", "SpawnBudget(max_agents=10)"),
    (lambda: ravi_otel.run(spawn_budget=ExecutionBudget()), "run(spawn_budget)", "ExecutionBudget", "SpawnBudget(max_agents=10)"),
    (lambda: ravi_otel.run(priority="high"), "run(priority)", "'high'", "Priority.HIGH"),
    (lambda: ravi_otel.run(priority=3), "run(priority)", "3", "Priority.CRITICAL"),
    (lambda: ravi_otel.run(retention="forever"), "run(retention)", "'forever'", "'permanent'"),
    (lambda: ravi_otel.run(tags=5), "run(tags)", "5", "dict"),
    (lambda: ravi_otel.run(tags=[("a", "b")]), "run(tags)", "('a', 'b')", "dict"),
    (lambda: ravi_otel.run(tags={"A b": "x"}), "run(tags)", "'A b'", "lower-case"),
    (lambda: ravi_otel.run(tags={5: "x"}), "run(tags)", "5", "lower-case"),
    (lambda: ravi_otel.run(tags={"team": 5}), "run(tags).team", "5", "give"),
    (lambda: ravi_otel.run(tags={f"k{n}": "x" for n in range(9)}), "run(tags)", "9", "at most 8"),
    # agent
    (lambda: ravi_otel.agent(None), "agent(name)", "None", "give"),
    (lambda: ravi_otel.agent(5), "agent(name)", "5", "give"),
    (lambda: ravi_otel.agent(""), "agent(name)", "''", "give"),
    (lambda: ravi_otel.agent(work), "agent(name)", "function", "parentheses"),
    (lambda: ravi_otel.agent("a", agent_id=5), "agent(agent_id)", "5", "give"),
    (lambda: ravi_otel.agent("a", budget=5), "agent(budget)", "5", "ExecutionBudget(max_tokens=50_000)"),
    (lambda: ravi_otel.agent("a", budget=SpawnBudget()), "agent(budget)", "SpawnBudget", "ExecutionBudget(max_tokens=50_000)"),
    (lambda: ravi_otel.agent("a", priority="x"), "agent(priority)", "'x'", "Priority.HIGH"),
    (lambda: ravi_otel.agent("a", retention=5), "agent(retention)", "5", "'run'"),
    (lambda: ravi_otel.agent("a", limits="turns=5"), "agent(limits)", "turns=5", '["tokens=50k"]'),
    (lambda: ravi_otel.agent("a", limits=[None]), "agent(limits)", "None", "token_limit(50_000)"),
    # apply_limits
    (lambda: ravi_otel.apply_limits("tokens=5"), "apply_limits(limits)", "tokens=5", "list"),
    (lambda: ravi_otel.apply_limits(None), "apply_limits(limits)", "None", "list"),
    (lambda: ravi_otel.apply_limits([5]), "apply_limits(limits)", "5", "token_limit(50_000)"),
    (lambda: ravi_otel.apply_limits([], name=5), "apply_limits(name)", "5", "give"),
    (lambda: ravi_otel.apply_limits([], catch="yes"), "apply_limits(catch)", "'yes'", "True or False"),
    # tool
    (lambda: ravi_otel.tool("search"), "tool(", "'search'", "@ravi_otel.tool(name='search')"),
    (lambda: ravi_otel.tool(5), "tool(", "5", "takes a function"),
    (lambda: ravi_otel.tool(name=5)(work), "tool(name)", "5", "give"),
    (lambda: ravi_otel.tool(name="")(work), "tool(name)", "''", "give"),
    (lambda: ravi_otel.tool(steps), "tool(steps)", "generator", "whole result"),
    # decorators
    (lambda: ravi_otel.run("r")(5), "run(", "5", "with ravi_otel.run"),
    (lambda: ravi_otel.run("r")(steps), "run(", "steps", "Use with inside it"),
    (lambda: ravi_otel.agent("a")(steps), "agent(", "steps", "Use with inside it"),
    # instrument
    (lambda: ravi_otel.instrument(limits="tokens=5"), "instrument(limits)", "tokens=5", "list"),
    (lambda: ravi_otel.instrument(limits=5), "instrument(limits)", "5", "list"),
    (lambda: ravi_otel.instrument(limits=["tokens"]), "tokens", "tokens", "tokens="),
    (lambda: ravi_otel.instrument(enforcement="strict"), "instrument(enforcement)", "'strict'", "'observe'"),
    (lambda: ravi_otel.instrument(enforcement=True), "instrument(enforcement)", "True", "'observe'"),
    (lambda: ravi_otel.instrument(admission="sometimes"), "instrument(admission)", "'sometimes'", "'after'"),
    (lambda: ravi_otel.instrument(admission="tight"), "instrument(admission", "tight", "'strict'"),
    (lambda: ravi_otel.instrument(prices=5), "prices", "5", "input"),
    (lambda: ravi_otel.instrument(prices={"m": 5}), "prices", "5", "input"),
    (lambda: ravi_otel.instrument(prices={"m": {"input": -1, "output": 1}}), "prices", "-1", "USD"),
    (lambda: ravi_otel.instrument(tracer_provider=5), "instrument(tracer_provider)", "5", "TracerProvider"),
    (lambda: ravi_otel.instrument(meter_provider="x"), "instrument(meter_provider)", "'x'", "MeterProvider"),
    (lambda: ravi_otel.instrument(logger_provider=object), "instrument(logger_provider)", "object", "LoggerProvider"),
]


@pytest.mark.parametrize(("act", "parameter", "value", "way_out"), BAD, ids=[f"{number}-{row[1]}" for number, row in enumerate(BAD)])
def test_a_wrong_argument_gives_one_clear_sentence(act, parameter, value, way_out):
    with pytest.raises(ConfigurationError) as caught:
        act()
    text = str(caught.value)
    for part in (parameter, value, way_out):
        assert part in text, text
    assert "\n" not in text
    assert len(text) < 400


OPENING_BAD = [
    (lambda: ravi_otel.run("r", limits=["session.requests=5"]), "session.requests=5", "run(session_id=...)"),
    (lambda: ravi_otel.run("r", limits=["agents=0"]), "agents=0", "at least 1"),
    (lambda: ravi_otel.agent("a", limits=["agents=3"]), "agents=3", "run(limits=...)"),
    (lambda: ravi_otel.apply_limits(["agents=3"]), "agents=3", "run(limits=...)"),
    (lambda: ravi_otel.run("r", session_id="s", limits=["session.agents=3"]), "session.agents=3", "run(limits=...)"),
]


@pytest.mark.parametrize(("make", "limit", "way_out"), OPENING_BAD)
def test_a_limit_that_cannot_be_kept_is_refused_when_its_scope_opens_and_nothing_stays_open(make, limit, way_out):
    with pytest.raises(ConfigurationError) as caught, make():
        pytest.fail("it opened")
    assert limit in str(caught.value)
    assert way_out in str(caught.value)
    assert ravi_otel.current_scope().facts.kind == "process"


def test_a_process_limit_that_cannot_be_kept_is_refused_by_instrument_and_nothing_is_wrapped():
    for limit in ("session.agents=3", "tenant.agents=3"):
        with pytest.raises(ConfigurationError, match=limit.split("=", maxsplit=1)[0]):
            ravi_otel.instrument(limits=[limit])


@pytest.mark.parametrize("bad", [{"limits": ["tenant.agents=3"]}, {"prices": {"m": 5}}, {"tracer_provider": 5}], ids=str)
def test_a_wrong_instrument_leaves_the_one_in_use_alone(stage, bad):
    with stage.client() as client, ravi_otel.instrument(limits=["requests=1"]) as handle:
        with pytest.raises(ConfigurationError):
            ravi_otel.instrument(**bad)
        assert ravi_otel.instrument() is handle
        call = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hi"}]}
        client.chat.completions.create(**call)
        with pytest.raises(ravi_otel.BudgetExhaustedError):
            client.chat.completions.create(**call)


def test_a_malformed_limit_keeps_what_was_written():
    with pytest.raises(LimitSyntaxError) as caught:
        ravi_otel.run("r", limits=["tokens=lots"])
    assert caught.value.spec == "tokens=lots"
    assert "tokens=500k" in str(caught.value) or "tokens=" in str(caught.value)


@pytest.mark.parametrize("make", [ravi_otel.run, ravi_otel.agent, ravi_otel.apply_limits, ravi_otel.instrument, ravi_otel.tool])
def test_a_keyword_that_does_not_exist_is_pythons_own_error(make):
    with pytest.raises(TypeError, match="unexpected keyword argument 'limit'"):
        make("x", limit=5) if make is not ravi_otel.instrument else make(limit=5)


@pytest.mark.parametrize("make", [ravi_otel.run, ravi_otel.agent, ravi_otel.instrument])
def test_everything_but_a_name_is_given_by_keyword(make):
    parameters = list(inspect.signature(make).parameters.values())
    assert all(one.kind is one.KEYWORD_ONLY for one in parameters if one.name != "name")


def test_errors_say_what_they_are():
    assert issubclass(ConfigurationError, ValueError)
    assert issubclass(MissingExtraError, ImportError)
