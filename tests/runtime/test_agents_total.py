"""Limits of agents in all and of children under one agent, as programs write them."""

import asyncio
import contextlib
import contextvars

import pytest

import ravi_otel
from ravi_otel import SpawnDeniedError
from ravi_otel.policy._limits import ScopeKind

AT_ONCE = 32
BOTH = pytest.mark.parametrize("kind", ["agents_total", "fan_out"])
LEAST = {"agents_total": 1, "fan_out": 0}
"""What lets the run's first agent in, and none under it."""


@BOTH
@pytest.mark.parametrize(("outcome", "status"), [("raise", "error"), ("stop", "stopped"), ("pause", "paused"), ("deny_tool", "error")])
def test_a_run_that_a_denied_agent_ends_says_by_which_limit(instrumented, kind, outcome, status):
    run = ravi_otel.run("r", limits=[f"{kind}={LEAST[kind]}:on={outcome}"])
    denied = contextlib.nullcontext() if status in ("stopped", "paused") else pytest.raises(SpawnDeniedError)
    with denied, run, ravi_otel.agent("root"), ravi_otel.agent("child"):
        pytest.fail("it opened")
    assert (run.status, run.stop_reason) == (status, f"limit_{kind}")


@BOTH
def test_a_run_that_goes_on_without_the_agent_is_ok(instrumented, kind):
    with ravi_otel.run("r", limits=[f"{kind}={LEAST[kind]}"]) as run, ravi_otel.agent("root"):
        with pytest.raises(SpawnDeniedError), ravi_otel.agent("child"):
            pytest.fail("it opened")
        assert ravi_otel.current_scope().facts.agent_name == "root"
    assert (run.status, run.stop_reason) == ("ok", "success")


@BOTH
@pytest.mark.anyio
async def test_no_more_tasks_get_in_than_there_is_room_for(instrumented, kind):
    allowed = {"agents_total": 9, "fan_out": 8}[kind]
    all_asked, denied, live, most = asyncio.Event(), 0, 0, 0

    async def child(number):
        nonlocal denied, live, most
        try:
            async with ravi_otel.agent(f"c{number}"):
                live += 1
                most = max(most, live)
                await all_asked.wait()
                live -= 1
        except SpawnDeniedError:
            denied += 1
            if denied == AT_ONCE - 8:
                all_asked.set()

    async with ravi_otel.run("r", limits=[f"{kind}={allowed}"]) as run, ravi_otel.agent("root"):
        async with asyncio.timeout(20):
            await asyncio.gather(*(child(number) for number in range(AT_ONCE)))
        (reading,) = run.limits
        assert (reading.used, reading.denied) == ({"agents_total": 9, "fan_out": 0}[kind], AT_ONCE - 8)
    assert (most, live) == (8, 0)


@BOTH
@pytest.mark.anyio
async def test_a_decorated_agent_of_either_colour_counts_each_time_and_gives_back_when_it_crashes(instrumented, kind):
    @ravi_otel.agent("plain")
    def plain():
        raise KeyError

    @ravi_otel.agent("awaited")
    async def awaited():
        raise KeyError

    with ravi_otel.run("r", limits=[f"{kind}={ {'agents_total': 5, 'fan_out': 1}[kind] }"]) as run, ravi_otel.agent("root"):
        for _ in range(2):
            with pytest.raises(KeyError):
                plain()
            with pytest.raises(KeyError):
                await awaited()
        (reading,) = run.limits
        assert (reading.used, reading.denied) == ({"agents_total": 5, "fan_out": 0}[kind], 0)


def test_agents_in_all_of_the_process_are_those_of_each_run(stage):
    with ravi_otel.instrument(limits=["agents_total=2"]):
        for _ in range(2):
            with ravi_otel.run("r") as run, ravi_otel.agent("root"), ravi_otel.agent("child"):
                with pytest.raises(SpawnDeniedError), ravi_otel.agent("one more"):
                    pytest.fail("it opened")
                assert [(one.scope, one.used) for one in run.limits] == [(ScopeKind.RUN, 2)]
        with ravi_otel.agent("a"), ravi_otel.agent("b"), ravi_otel.agent("c"):
            assert ravi_otel.current_scope().facts.run_id is None


def test_a_fan_out_of_the_process_holds_with_and_without_a_run(stage, monkeypatch):
    monkeypatch.setenv("RAVI_LIMIT_FAN_OUT", "1")
    with ravi_otel.instrument():
        for around in (contextlib.nullcontext, ravi_otel.run):
            with around(), ravi_otel.agent("root"):
                beside = contextvars.copy_context()
                denied = pytest.raises(SpawnDeniedError, match="Raise RAVI_LIMIT_FAN_OUT=1 or leave it out, or end one")
                with ravi_otel.agent("child"), denied:
                    beside.run(ravi_otel.agent("second").__enter__)


def test_a_policy_file_says_both(stage, tmp_path):
    path = tmp_path / "p.toml"
    path.write_text('limits = ["agents_total=2"]\n[agents]\nboss = ["fan_out=0"]\n')
    with ravi_otel.instrument(policy=path), ravi_otel.run("r"):
        with ravi_otel.agent("boss"), pytest.raises(SpawnDeniedError, match=rf"Raise agent\.boss\.fan_out=0 in {path} agents.boss\[0\]"):
            ravi_otel.agent("child").__enter__()
        with ravi_otel.agent("second"), pytest.raises(SpawnDeniedError, match=rf"Raise agents_total=2 in {path} limits\[0\]"):
            ravi_otel.agent("third").__enter__()


@pytest.mark.parametrize("kind", ["agents_total=3", "fan_out=3"])
def test_neither_keeps_anything_back_for_a_last_call(kind):
    with pytest.raises(ravi_otel.ConfigurationError, match="nothing can be: write stop instead"):
        ravi_otel.parse_limit(f"{kind}:on=final")
