"""What is left of a budget, over all scopes around, as a program reads it."""

import re

import pytest

import ravi_otel
from ravi_otel import ConfigurationError, LimitSyntaxError, Priority
from ravi_otel.policy import ScopeKind


def test_the_tightest_limit_of_all_scopes_around_is_what_is_left(settings):
    process = [ravi_otel.parse_limit("charge.rows=90"), ravi_otel.parse_limit("agent.clerk.charge.rows=40")]
    limits = ["tenant.charge.rows=80", "session.charge.rows=70", "charge.rows=60"]
    with settings(limits=process):
        assert ravi_otel.remaining("charge.rows") == 90
        with ravi_otel.run("r", limits=limits, tenant_id="t", session_id="s") as run:
            assert (ravi_otel.remaining("charge.rows"), run.remaining("charge.rows")) == (60, 60)
            with ravi_otel.handoff("h", limits=["charge.rows=50"]), ravi_otel.agent("clerk") as agent:
                assert ravi_otel.remaining("charge.rows") == 40
                agent.scope.charge("rows", 35)
                assert ravi_otel.remaining("charge.rows") == 5
                with ravi_otel.apply_limits(["charge.rows=3"]):
                    assert ravi_otel.remaining("charge.rows") == 3
            assert ravi_otel.remaining("charge.rows") == 60 - 35
            assert ravi_otel.remaining("session.charge.rows") == 70 - 35


@pytest.mark.parametrize(
    "kind", ["tokens", "cost", "requests", "turns", "messages", "tool_calls", "tool.search", "agents", "depth", "time"]
)
def test_what_nothing_limits_is_none(instrumented, kind):
    with ravi_otel.run("r"):
        assert ravi_otel.remaining(kind) is None


def test_amounts_are_in_the_units_of_their_kinds(on_clock):
    limits = ["cost=0.5usd", "tokens=1k", "time=90s", "working=60s", "requests=7", "messages=9", "tool.search=3"]
    with ravi_otel.run("r", limits=limits):
        on_clock.advance(30)
        kinds = ("cost", "tokens", "time", "working", "requests", "messages", "tool.search")
        left = [ravi_otel.remaining(kind) for kind in kinds]
        assert left == [0.5, 1_000, 60.0, 30.0, 7, 9, 3]
        assert [type(each) for each in left] == [float, int, float, float, int, int, int]
        on_clock.advance(100)
        assert ravi_otel.remaining("time") == 0


@pytest.mark.parametrize("admission", ["estimate", "strict", "after"])
def test_what_a_call_used_is_not_left(client, ask, admission):
    with ravi_otel.run("r", limits=[f"tokens=10k:admission={admission}", "requests=3", "turns=3"]) as run:
        ask(client, max_tokens=100)
        assert ravi_otel.remaining("tokens") == 10_000 - run.stats().total_tokens
        assert (ravi_otel.remaining("requests"), ravi_otel.remaining("turns")) == (2, 2)


def test_what_a_stream_holds_is_not_left_until_it_ends(client, ask):
    with ravi_otel.run("r", limits=["tokens=10k"]) as run:
        stream = ask(client, stream=True, max_tokens=500)
        assert ravi_otel.remaining("tokens") < 10_000 - 500
        for _ in stream:
            pass
        (reading,) = run.limits
        assert (reading.held, reading.remaining) == (0, ravi_otel.remaining("tokens"))


def test_a_window_counts_for_whom_the_run_is(instrumented):
    with ravi_otel.run("r", limits=["charge.rows=9"], user_id="nobody"):
        for user, used in (("ann", 4), ("bob", 1)):
            with ravi_otel.run(user_id=user, tenant_id="t", limits=["tenant.charge.rows=5:per=day:by=user"]) as run:
                assert ravi_otel.remaining("charge.rows") == 5
                run.scope.charge("rows", used)
        with ravi_otel.run(user_id="ann", tenant_id="t", limits=["tenant.charge.rows=5:per=day:by=user"]):
            assert ravi_otel.remaining("charge.rows") == 1


def test_a_limit_of_the_whole_bounds_its_parts(instrumented):
    with ravi_otel.run("r", limits=["tokens=100", "output_tokens=500", "tool_calls=2", "tool.search=5"]):
        kinds = ("output_tokens", "input_tokens", "tool.search", "tool.other", "tool_calls")
        assert [ravi_otel.remaining(kind) for kind in kinds] == [100, 100, 2, 2, 2]


def test_the_limit_of_an_agents_name_is_its_own(instrumented):
    with ravi_otel.run("r", limits=["charge.rows@clerk=5"]):
        assert (ravi_otel.remaining("charge.rows"), ravi_otel.remaining("charge.rows@clerk")) == (None, 5)
        with ravi_otel.agent("clerk") as clerk:
            clerk.scope.charge("rows", 2)
            assert ravi_otel.remaining("charge.rows") == 3
        with ravi_otel.agent("other"):
            assert (ravi_otel.remaining("charge.rows"), ravi_otel.remaining("charge.rows@clerk")) == (None, 3)


def test_a_part_that_was_carved_out_is_what_its_agent_has(instrumented):
    with ravi_otel.run("r"), ravi_otel.agent("lead", limits=["tokens=1000"]):
        with ravi_otel.agent("worker", share=0.25):
            assert ravi_otel.remaining("tokens") == 250
        assert ravi_otel.remaining("tokens") == 1_000


def test_what_is_promised_to_other_agents_is_not_left(instrumented):
    with ravi_otel.run("r"), ravi_otel.agent("lead", limits=["tokens=900"]) as lead, ravi_otel.agent("a", share="weighted"):
        assert ravi_otel.remaining("tokens") == 900
        assert lead.remaining("tokens") == 0


def test_what_is_kept_back_is_left_for_the_last_call_alone(instrumented):
    with ravi_otel.run("r", limits=["requests=3:on=final"]) as run:
        assert ravi_otel.remaining("requests") == 2
        with run.wrap_up():
            assert ravi_otel.remaining("requests") == 3


def test_agents_levels_and_children_are_counted_from_here(instrumented):
    limits = ["agents=4", "depth=2", "fan_out=2", "agents_total=5"]
    with ravi_otel.run("r", limits=limits):
        assert (ravi_otel.remaining("depth"), ravi_otel.remaining("fan_out")) == (2, None)
        with ravi_otel.agent("root"):
            assert [ravi_otel.remaining(kind) for kind in ("agents", "depth", "fan_out", "agents_total")] == [3, 2, 2, 4]
            with ravi_otel.agent("child", priority=Priority.HIGH):
                assert [ravi_otel.remaining(kind) for kind in ("agents", "depth", "fan_out", "agents_total")] == [2, 1, 2, 3]
            assert ravi_otel.remaining("fan_out") == 2


def test_a_limit_that_only_observes_limits_nothing(instrumented):
    with ravi_otel.run("r", limits=["requests=3:on=observe"]):
        assert ravi_otel.remaining("requests") is None


def test_it_is_never_below_nothing(instrumented):
    with ravi_otel.run("r", limits=["charge.rows=5"]) as run:
        run.scope.charge("rows", 5)
        run.set_limit("charge.rows", 2)
        assert ravi_otel.remaining("charge.rows") == 0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("cots", "did you mean 'cost'"),
        ("tokens=5", "here stands a kind alone"),
        ("sql_rows", "charge.NAME is one your program charges itself"),
        ("tool", "tool needs a name"),
        (5, "is not text"),
        (None, "is not text"),
        ("", "is empty"),
        ("x" * 10_000, "is longer than"),
    ],
)
def test_a_kind_that_does_not_exist_is_named(instrumented, wrong, words):
    with pytest.raises(ConfigurationError, match=rf"^remaining\(kind\)=.*{re.escape(words)}"):
        ravi_otel.remaining(wrong)
    assert issubclass(LimitSyntaxError, ConfigurationError)


# -- all limits around ------------------------------------------------------------------------------------------------


def whose(readings):
    return [(each.limit.kind, each.scope, each.scope_name) for each in readings]


def test_limits_lists_those_around_too_its_own_first_and_whose_they_are(settings):
    process = [ravi_otel.parse_limit("cost=9usd"), ravi_otel.parse_limit("time=90s")]
    with (
        settings(limits=process),
        ravi_otel.run("r", limits=["turns=5", "tenant.requests=6", "session.tokens=7"], tenant_id="t", session_id="s") as run,
        ravi_otel.agent("clerk", limits=["tool_calls=3"]) as clerk,
    ):
        around = [
            ("turns", ScopeKind.RUN, "r"),
            ("tokens", ScopeKind.SESSION, "s"),
            ("requests", ScopeKind.TENANT, "t"),
            ("cost", ScopeKind.PROCESS, None),
            ("time", ScopeKind.PROCESS, None),
        ]
        assert whose(run.limits) == around
        assert whose(clerk.limits) == [("tool_calls", ScopeKind.AGENT, "clerk"), *around]


def test_the_budget_of_an_agent_around_is_not_its_childs(instrumented):
    with ravi_otel.run("r"), ravi_otel.agent("lead", limits=["tokens=5", "time=60s"]), ravi_otel.agent("child") as child:
        assert whose(child.limits) == [("time", ScopeKind.AGENT, "lead")]


def test_of_a_limit_by_user_around_the_counter_is_the_users_own(instrumented):
    for user in ("ann", "bob"):
        with ravi_otel.run(user_id=user, tenant_id="t", limits=["tenant.charge.rows=5:by=user"]) as run:
            (before,) = run.limits
            run.scope.charge("rows", 2)
            (after,) = run.limits
            assert [(each.counted_for, each.used) for each in (before, after)] == [(user, 0), (user, 2)]


def test_an_own_limit_by_user_is_read_before_anybody_used_it(instrumented):
    with ravi_otel.run(user_id="ann", limits=["requests=5:per=day:by=user"]) as run:
        (reading,) = run.limits
        assert (reading.counted_for, reading.remaining) == ("ann", 5)


def test_a_reading_is_shown_in_a_line(on_clock):
    with ravi_otel.run("nightly", limits=["cost=0.01usd", "time=90s", "turns=5:per=day:by=user"], user_id="a") as run:
        on_clock.advance(1.5)
        assert [repr(each) for each in run.limits] == [
            "LimitReading('cost=0.01usd', used=$0.00, held=$0.00, remaining=$0.01, of run 'nightly')",
            "LimitReading('time=90s', used=1.5 s, held=0 s, remaining=88.5 s, of run 'nightly')",
            "LimitReading('turns=5:per=day:by=user', used=0, held=0, remaining=5, of run 'nightly', window='2026-01-01', counted_for='a')",
        ]
