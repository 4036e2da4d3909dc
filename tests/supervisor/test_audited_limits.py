"""Whoever sets a limit stands in the audit log of a program that has one: which limit, from what to what, in which run, and who it was."""

from __future__ import annotations

import json
import logging

import pytest

import ravi_otel
from ravi_otel import ConfigurationError, SpawnBudget
from ravi_otel.agents.middleware import AuditTrail
from ravi_otel.supervisor import AuditLog, Gate
from ravi_otel.supervisor._audit import verify


def lookup(order: int) -> str:
    return f"order {order}"


@pytest.fixture
def log(tmp_path):
    return AuditLog(tmp_path / "audit")


@pytest.fixture
def gate(log):
    return Gate(tools=[lookup], audit=log)


def limits_in(log, run_id):
    path = log.path(run_id)
    assert verify(path).ok
    return [entry for line in path.read_bytes().splitlines() if (entry := json.loads(line))["what"] == "limit_set"]


def shown(entry):
    return tuple(entry[name] for name in ("limit", "before", "now", "scope", "scope_name", "who", "login"))


@pytest.mark.usefixtures("gate")
def test_a_limit_that_the_program_sets_stands_in_the_log_of_its_run_as_the_programs_own(log):
    with (
        ravi_otel.run("r", run_id="run-1", limits=["cost=0.50usd", "tokens=100"]) as run,
        ravi_otel.agent("a", limits=["turns=2"]) as agent,
    ):
        run.set_limit("cost", 2)
        agent.set_limit("turns", 5)
    assert [shown(each) for each in limits_in(log, "run-1")] == [
        ("cost", 0.5, 2.0, "run", "r", None, None),
        ("turns", 2, 5, "agent", "a", None, None),
    ]


@pytest.mark.usefixtures("gate")
def test_of_two_limits_of_one_kind_that_are_set_at_once_each_is_written_with_what_it_was(log):
    with ravi_otel.run("r", run_id="run-1", limits=["tokens=100", "tokens=200:per=1h"]) as run:
        run.set_limit("tokens", 7)
    assert sorted((each["before"], each["now"]) for each in limits_in(log, "run-1")) == [(100, 7), (200, 7)]


@pytest.mark.usefixtures("gate")
def test_a_person_stands_in_it_with_the_user_of_the_system_who_asked(log):
    with ravi_otel.run("r", run_id="run-1", limits=["tool.lookup=1"]) as run:
        run.scope.set_limit("tool.lookup", 3, by="ana", login="web")
    assert [shown(each) for each in limits_in(log, "run-1")] == [("tool.lookup", 1, 3, "run", "r", "ana", "web")]


@pytest.mark.usefixtures("gate")
def test_each_kind_of_limit_is_written_once_with_what_it_was(log):
    limits = ["requests=5:per=1h", "time=90s"]
    with ravi_otel.run("r", run_id="run-1", limits=limits, spawn_budget=SpawnBudget(3)) as run:
        run.set_limit("requests", 6)
        run.set_limit("time", 120)
        run.set_limit("agents", 4)
    with ravi_otel.run("free", run_id="run-2") as run:
        run.set_limit("agents", 4)
    assert [shown(each)[1:3] for each in limits_in(log, "run-1")] == [(5, 6), (90.0, 120.0), (3, 4)]
    assert [shown(each)[1:3] for each in limits_in(log, "run-2")] == [(None, 4)]


@pytest.mark.usefixtures("gate")
def test_what_is_refused_is_not_written_down(log):
    with ravi_otel.run("r", run_id="run-1", limits=["tokens=100"]) as run, pytest.raises(ConfigurationError, match="no such limit"):
        run.set_limit("cost", 2)
    assert not log.path("run-1").exists()


def test_two_gates_of_one_directory_write_it_once_and_one_of_another_writes_it_too(log, tmp_path):
    gates = [Gate(tools=[lookup], audit=AuditLog(where)) for where in (log.directory, log.directory, tmp_path / "other")]
    with ravi_otel.instrument(), ravi_otel.run("r", run_id="run-1", limits=["tokens=100"]) as run:
        run.set_limit("tokens", 200)
    assert [len(limits_in(each, "run-1")) for each in (log, AuditLog(tmp_path / "other"))] == [1, 1]
    assert len(gates) == 3


def test_an_audit_trail_writes_it_and_a_log_that_is_only_read_does_not(log, tmp_path):
    trail, read = AuditTrail(log), AuditLog(tmp_path / "other")
    with ravi_otel.run("r", run_id="run-1", limits=["tokens=100"]) as run:
        run.set_limit("tokens", 200)
    assert len(limits_in(log, "run-1")) == 1
    assert (trail.level, read.head("run-1")) == ("tool", None)


@pytest.mark.usefixtures("gate")
def test_a_limit_is_set_also_where_the_log_cannot_be_written_and_the_program_says_so(log, caplog):
    log.directory.mkdir()
    log.path("run-1").mkdir()
    with caplog.at_level(logging.ERROR, "ravi_otel"), ravi_otel.run("r", run_id="run-1", limits=["tokens=100"]) as run:
        run.scope.set_limit("tokens", 10, by="ana", login="ana")
        assert run.limits[0].limit.value == 10
    assert "tokens was set to 10 by ana, and the audit log" in caplog.text
    assert "The limit was set all the same" in caplog.text
