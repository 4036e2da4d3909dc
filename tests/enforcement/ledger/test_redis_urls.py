"""URLs of Redis stores: what they mean, what is refused in one sentence, and that no password is ever shown."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ravi_otel._enforcement.ledger.redis.client import Breaker
from ravi_otel._enforcement.ledger.redis.url import read
from ravi_otel.errors import ConfigurationError
from ravi_otel.testing import ManualClock

SHOWN = {
    "redis://cache": ("single", (("cache", 6379),), 0, "redis://cache:6379"),
    "redis://cache:7000/3": ("single", (("cache", 7000),), 3, "redis://cache:7000/3"),
    "REDIS://[::1]:7000?db=2": ("single", (("::1", 7000),), 2, "redis://[::1]:7000/2"),
    "rediss://cache": ("single", (("cache", 6379),), 0, "rediss://cache:6379"),
    "redis://": None,
    "unix:///run/redis.sock?db=1": ("unix", (), 1, "unix:///run/redis.sock"),
    "redis+unix:///run/redis.sock": ("unix", (), 0, "redis+unix:///run/redis.sock"),
    "redis+sentinel://a,b:1/main/4": ("sentinel", (("a", 26379), ("b", 1)), 4, "redis+sentinel://a:26379,b:1/main/4"),
    "redis+cluster://a:1,b:2": ("cluster", (("a", 1), ("b", 2)), 0, "redis+cluster://a:1,b:2"),
}


@pytest.mark.parametrize("url", [url for url, meant in SHOWN.items() if meant])
def test_a_url_says_where_the_store_is(url):
    address = read(url)
    assert (address.kind, address.hosts, address.db, address.shown) == SHOWN[url]


WRONG = {
    "http://cache": "starts with one of redis://",
    "redis://": "starts with one of redis://",
    "redis://cache/x": "database of a Redis store is a whole number",
    "redis://cache/-1": "database of a Redis store is a whole number",
    "redis://cache/1/2": "database of a Redis store is a whole number",
    "redis://cache/\u0661": "database of a Redis store is a whole number",
    "redis://cache/99999999999": "database of a Redis store is a whole number",
    "redis://cache:port": "is no host of a Redis store",
    "redis://cache:70000": "is no host of a Redis store",
    "redis://[cache": "cannot be read",
    "redis://cache?tiemout_s=1": "is no parameter",
    "redis://cache?timeout_s=0": "is seconds, up to 60",
    "redis://cache?timeout_s=nan": "is seconds, up to 60",
    "redis://cache?timeout_s=soon": "is seconds, up to 60",
    "redis://cache?db=1&db=2": "is there twice",
    "redis://cache?" + "&".join(f"a{each}=1" for each in range(40)): "more than 32 parameters",
    "redis://cache\n": "printable characters",
    "redis://" + "a" * 5_000: "at most 4,096",
    "redis://" + ",".join("a" * 100): "names 100 hosts",
    "rediss://cache?ssl_cert_reqs=never": "is one of required, optional, none",
    "redis://cache?ssl_ca_certs=/a": "is no parameter",
    "redis+sentinel://a,b": "needs the name of the service",
    "redis+cluster://a/1": "database 0 only",
    "unix://redis.sock": "needs the whole path",
}


@pytest.mark.parametrize("url", WRONG, ids=[url[:40] for url in WRONG])
def test_what_cannot_be_used_is_one_sentence(url):
    with pytest.raises(ConfigurationError, match=WRONG[url]) as caught:
        read(url)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("url", ["redis://me:%E2%82%AC%40@cache", "redis+sentinel://me:%E2%82%AC%40@a,b/main"])
def test_a_name_and_a_password_are_read_and_not_shown(url):
    address = read(url)
    assert (address.username, address.password) == ("me", "€@")
    assert "€" not in repr(address)
    assert "@" not in address.shown


@settings(deadline=None)
@given(st.text(max_size=40), st.text(max_size=20))
def test_whatever_is_written_is_read_or_refused_and_its_password_is_shown_by_neither(rest, more):
    secret = "geheimnis-17"
    try:
        shown = repr(read(f"redis://me:{secret}@{rest}?{more}"))
    except ConfigurationError as error:
        shown = str(error)
    assert secret not in shown


def test_a_breaker_opens_at_the_third_failure_in_a_row():
    breaker = Breaker(ManualClock())
    assert [breaker.failed(), breaker.failed(), breaker.succeeded(), breaker.failed(), breaker.failed()] == [False] * 5
    assert breaker.look() == "ask"
    assert breaker.failed()
    assert (breaker.look(), breaker.is_open) == ("refuse", True)


def test_a_breaker_lets_one_probe_through_after_each_pause_and_closes_with_an_answer():
    clock = ManualClock()
    breaker = Breaker(clock)
    for _ in range(3):
        breaker.failed()
    for pause_s in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0):
        clock.advance(pause_s - 0.001)
        assert breaker.look() == "refuse"
        clock.advance(0.001)
        assert [breaker.look(), breaker.look()] == ["probe", "refuse"]
        assert not breaker.failed(), "who asked before it opened says nothing new"
        breaker.failed(probe=True)
    assert breaker.succeeded()
    assert breaker.look() == "ask"
    assert not breaker.succeeded()


def test_a_server_that_was_late_is_probed_at_once_and_waited_for_until_that_fails():
    clock = ManualClock()
    breaker = Breaker(clock)
    for _ in range(3):
        breaker.failed(late=True)
    assert breaker.is_worth_waiting
    assert [breaker.look(), breaker.look()] == ["probe", "refuse"]
    breaker.failed(probe=True)
    assert not breaker.is_worth_waiting
    assert breaker.look() == "refuse"
    clock.advance(0.5)
    assert breaker.look() == "probe"
    breaker.succeeded()
    breaker.failed(probe=True)
    assert breaker.look() == "ask", "somebody else was answered before that probe failed"
