"""Calls that wait for an answer made in the background: each is given away once."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from ravi_otel._runtime import background_calls
from ravi_otel._runtime.background_calls import LONGEST_NAME, Awaited, Key, key_of
from ravi_otel._runtime.stopping import drain
from ravi_otel.hooks._events import CallRecord
from ravi_otel.policy._usage import Call, Reply, Usage


def key(name: str, **where: object) -> Key:
    found = key_of(Call("chat", "responses", server_address="api.openai.com", server_port=443, **where), name)  # type: ignore[arg-type]  # what a test needs
    assert found is not None
    return found


A, B = key("resp_1"), key("resp_2")


@dataclass
class Waiting:
    seen: list[Reply] = field(default_factory=list)

    def collect(self, reply: Reply, at: CallRecord | None) -> Any:
        self.seen.append(reply)


class Broken(Waiting):
    def collect(self, reply: Reply, at: CallRecord | None) -> Any:
        super().collect(reply, at)
        raise ValueError("our own bug")


@pytest.fixture
def table() -> Awaited:
    return Awaited()


def test_a_kept_call_is_given_to_the_first_look_alone(table):
    call = Waiting()
    table.keep(A, call)
    assert table.take(A, Reply(id="resp_1")) is call
    assert table.take(A, Reply(id="resp_1")) is None


def test_a_hundred_looks_from_ten_threads_find_it_once(table):
    call, found = Waiting(), Counter()
    table.keep(A, call)
    start = threading.Barrier(10)

    def look() -> None:
        start.wait()
        for _ in range(10):
            found[table.take(A, Reply(id="resp_1")) is call] += 1

    threads = [threading.Thread(target=look) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[True] == 1


def test_a_call_whose_answer_has_no_name_is_given_up_at_once(table):
    call = Waiting()
    table.keep(None, call)
    assert [reply.usage for reply in call.seen] == [None]
    assert len(table) == 0


def test_a_second_call_of_the_same_name_gives_up_the_first(table):
    first, second = Waiting(), Waiting()
    table.keep(A, first)
    table.keep(A, second)
    assert (len(first.seen), len(second.seen)) == (1, 0)


def test_a_look_that_ended_before_its_stream_was_left_settles_the_stream(table):
    call = Waiting()
    table.streams(A)
    assert table.take(A, Reply(id="resp_1", usage=Usage(3, 4))) is None
    table.keep(A, call)
    assert [reply.usage for reply in call.seen] == [Usage(3, 4)]


def test_what_a_look_brought_before_its_stream_was_left_is_given_once(table):
    table.streams(A)
    assert table.early(A) is None
    table.take(A, Reply(id="resp_1", usage=Usage(3, 4)))
    early = table.early(A)
    assert early is not None
    assert (early.usage, table.early(A)) == (Usage(3, 4), None)


def test_a_look_at_a_stream_that_told_its_usage_itself_is_forgotten(table):
    call = Waiting()
    table.streams(A)
    table.take(A, Reply(id="resp_1", usage=Usage(3, 4)))
    table.ended(A)
    table.keep(A, call)
    assert call.seen == []


def test_what_nobody_looks_at_for_an_hour_is_given_up(table, monkeypatch):
    old, young = Waiting(), Waiting()
    table.keep(A, old)
    now = background_calls.time.monotonic()
    monkeypatch.setattr(background_calls.time, "monotonic", lambda: now + background_calls.LONGEST_S + 1)
    table.keep(B, young)
    assert (len(old.seen), len(young.seen)) == (1, 0)


def test_more_than_ten_thousand_give_up_the_oldest(table, monkeypatch):
    monkeypatch.setattr(background_calls, "MOST_KEPT", 2)
    calls = [Waiting() for _ in range(3)]
    for number, call in enumerate(calls):
        table.keep(key(f"resp_{number}"), call)
    assert [len(call.seen) for call in calls] == [1, 0, 0]


def test_at_the_end_everything_is_given_up_whatever_one_of_them_raises(table, monkeypatch):
    monkeypatch.delenv("RAVI_RAISE_BUGS", raising=False)
    broken, last = Broken(), Waiting()
    table.keep(A, broken)
    table.keep(B, last)
    table.give_up()
    assert (len(broken.seen), len(last.seen), len(table)) == (1, 1, 0)


def test_a_forked_child_forgets_what_its_parent_waits_for(table):
    call = Waiting()
    table.keep(A, call)
    table.forget()
    table.give_up()
    assert call.seen == []


@pytest.mark.parametrize(
    "elsewhere",
    [
        Call("chat", "responses", server_address="evil.example", server_port=443),
        Call("chat", "responses", server_address="api.openai.com", server_port=8443),
        Call("chat", "responses", provider="groq", server_address="api.openai.com", server_port=443),
    ],
)
def test_the_same_name_at_another_host_port_or_provider_is_another_answer(table, elsewhere):
    call = Waiting()
    table.keep(A, call)
    assert table.take(key_of(elsewhere, "resp_1"), Reply(id="resp_1")) is None
    assert table.waits(A)


@pytest.mark.parametrize("name", [None, "", "x" * (LONGEST_NAME + 1)])
def test_a_name_that_is_none_or_too_long_is_not_kept(table, name):
    call = Waiting()
    table.keep(key_of(Call("chat", "responses"), name), call)
    assert (len(table), len(call.seen)) == (0, 1)


def test_after_an_hour_a_drain_gives_up_what_waits_though_nothing_new_is_kept(monkeypatch):
    call = Waiting()
    background_calls.AWAITED.keep(A, call)
    now = background_calls.time.monotonic()
    drain()
    assert call.seen == []
    monkeypatch.setattr(background_calls.time, "monotonic", lambda: now + background_calls.LONGEST_S + 1)
    drain()
    assert (len(call.seen), len(background_calls.AWAITED)) == (1, 0)
