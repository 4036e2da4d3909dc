"""Two processes count in one store when they name it alike, whoever they are there."""

import pytest

from ravi_otel._enforcement.ledger import choosing
from ravi_otel._enforcement.ledger.choosing import open_ledger, server_words
from ravi_otel._enforcement.ledger.store_ledger import store_id


def named(url):
    namespace = "shop" if "namespace=shop" in url else "default"
    return server_words(url, namespace)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("redis://cache", "redis://user:secret@CACHE:6379/0?ssl_cert_reqs=none"),
        ("rediss://cache/0", "redis://cache/0"),
        ("redis://cache/3", "redis://cache?db=3"),
        ("redis+cluster://a,b:7000", "redis+cluster://b:7000,a:6379"),
        ("redis+sentinel://a/main", "redis+sentinel://x:y@a:26379/main"),
        ("unix:///run/redis.sock", "unix://user:secret@/run/redis.sock?db=0"),
    ],
)
def test_one_store_has_one_name_whoever_asks_and_by_which_options(one, other):
    assert named(one) == named(other)
    assert "secret" not in named(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("redis://cache", "redis://other"),
        ("redis://cache:6379", "redis://cache:6380"),
        ("redis://cache/0", "redis://cache/1"),
        ("redis://cache", "redis://cache?namespace=shop"),
        ("redis+sentinel://a/main", "redis+sentinel://a/spare"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock?db=1"),
        ("redis://cache", "redis+cluster://cache"),
    ],
)
def test_two_stores_have_two_names(one, other):
    assert named(one) != named(other)


@pytest.mark.parametrize("url", ["redis://localhost", "redis://127.0.0.1:6379", "redis://[::1]:6379", "unix:///run/redis.sock"])
def test_what_only_one_machine_sees_is_another_store_on_each(monkeypatch, url):
    here = named(url)
    monkeypatch.setattr(choosing, "_machine", lambda: "another")
    assert named(url) != here


def test_a_ledger_that_was_opened_knows_its_store_and_memory_has_none(tmp_path):
    path = tmp_path / "ledger.db"
    opened = [open_ledger(f"sqlite:{path}"), open_ledger(f"sqlite:{tmp_path}/./ledger.db"), open_ledger(f"sqlite:{tmp_path / 'other.db'}")]
    first, same, other = (store_id(each) for each in opened)
    assert first is not None
    assert first == same != other
    assert store_id(open_ledger("memory:")) is None
    for ledger in opened:
        ledger.close()
