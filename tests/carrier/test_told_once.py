"""A mistake in what carries a run is said once in the log, with the way out."""

import logging

import pytest

import ravi_otel
from ravi_otel import ConfigurationError, child_environment, continue_run, outbound_headers, task_headers
from ravi_otel.carrier import _inbound
from ravi_otel.carrier._clients import Destination, Rewriting
from ravi_otel.carrier._configuration import read_keys
from ravi_otel.carrier._lending import RETURN_HEADER
from ravi_otel.carrier._token import VERSION, Spent, write_spent

KEY = "k1:0123456789abcdef"


@pytest.fixture
def said(caplog, monkeypatch):
    """Read what the log says, as if nothing had been said before."""
    monkeypatch.setattr(_inbound, "_warned", set())
    caplog.set_level(logging.WARNING, "ravi_otel")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "ravi_otel" and "instrument() was" not in record.msg]


@pytest.mark.parametrize("ask", [task_headers, child_environment])
def test_a_run_that_is_sent_along_without_a_key_says_so_once(heard, said, ask):
    with ravi_otel.run(limits=["tokens=100"]):
        ask()
        ask()
    (sentence,) = said()
    assert "set RAVI_CARRY_KEYS" in sentence


def test_a_process_without_a_key_says_that_what_came_is_not_in_force(heard, said):
    for _ in range(2):
        with continue_run({"baggage": "ravi.carry=2.k.x.y"}):
            pass
    (sentence,) = said()
    assert "not in force" in sentence
    assert "RAVI_CARRY_KEYS is not set in this process" in sentence


def test_another_key_says_so_once(carrying, said, monkeypatch):
    with ravi_otel.run(limits=["tokens=100"]):
        headers = task_headers()
    monkeypatch.setenv("RAVI_CARRY_KEYS", "k1:fedcba9876543210")
    for _ in range(2):
        with continue_run(headers) as run:
            assert run.rejected == "forged"
    (sentence,) = said()
    assert "Give both sides the same key" in sentence


def test_another_version_says_so_once(carrying, said):
    with ravi_otel.run(limits=["tokens=100"]):
        headers = {"baggage": task_headers()["baggage"].replace(f"={VERSION}.", f"={int(VERSION) + 1}.")}
    for _ in range(2):
        with continue_run(headers) as run:
            assert run.rejected == "version"
    (sentence,) = said()
    assert "another version of ravi-otel" in sentence


def test_a_request_that_brings_nothing_is_nothing_to_be_said(carrying, said):
    with continue_run({}) as run:
        assert run.rejected == "missing"
    assert said() == []


def test_a_url_without_a_scheme_is_an_error(carrying):
    with pytest.raises(ConfigurationError, match="has no scheme"):
        outbound_headers("b.internal/x")


@pytest.mark.parametrize("name", ["localhost", "api.internal"])
def test_a_peer_is_listed_by_its_address(carrying, said, monkeypatch, name):
    monkeypatch.setenv("RAVI_CARRY_TRUST", name)
    with continue_run({}):
        pass
    (sentence,) = said()
    assert "is no address or network" in sentence


def asks_by_hand(url):
    outbound_headers(url)


def asks_by_a_wrapped_client(url):
    Rewriting(lambda _: False, lambda *_: None).edit([], lambda: Destination(url))


@pytest.mark.parametrize("asks", [asks_by_hand, asks_by_a_wrapped_client])
def test_a_loan_that_no_listed_host_took_says_so_once(carrying, said, asks):
    with ravi_otel.run(limits=["tokens=100"]):
        for _ in range(2):
            with ravi_otel.lend(tokens=10) as loan:
                asks("http://user:secret@c.internal:8080/x?key=secret")
        assert loan.status == "released"
    (sentence,) = said()
    assert "'c.internal' in a lend() block took no loan along" in sentence
    assert "RAVI_CARRY_TO does not list" in sentence
    assert "secret" not in sentence


def test_a_loan_that_nothing_was_asked_with_or_that_a_later_request_took_is_no_mistake(carrying, said):
    with ravi_otel.run(limits=["tokens=100"]):
        with ravi_otel.lend(tokens=10):
            pass
        with ravi_otel.lend(tokens=10) as loan:
            outbound_headers("http://c.internal/x")
            outbound_headers("http://b.internal/x")
        assert loan.is_sent
        ravi_otel.take_return("http://b.internal/x", {RETURN_HEADER: write_spent(Spent(loan.id, {}), read_keys(KEY))})
    assert said() == []
