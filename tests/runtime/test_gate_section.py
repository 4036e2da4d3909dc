"""A gate's rules in a policy file are no limits: who reads only those is told so."""

import sys

import pytest

import ravi_otel

READER = "ravi_otel.supervisor.rules"


@pytest.fixture
def policy(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text('limits = ["requests=5"]\n[gate]\ndefault = "block"\n', encoding="utf-8")
    return path


def test_a_program_that_reads_only_the_limits_of_a_file_with_a_gate_is_told(policy, caplog, monkeypatch):
    monkeypatch.delitem(sys.modules, READER, raising=False)
    with ravi_otel.instrument(policy=policy):
        assert [record.getMessage() for record in caplog.records if "gate section stands before no tool" in record.getMessage()]


def test_a_program_that_has_the_rules_at_hand_is_not(policy, caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, READER, sys)
    with ravi_otel.instrument(policy=policy):
        assert not [record for record in caplog.records if "gate section" in record.getMessage()]
