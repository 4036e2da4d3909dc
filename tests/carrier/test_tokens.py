"""What is carried is signed, bounded, and read as what anybody may have written."""

import base64
import json
import os
import random

import pytest

import ravi_otel
from ravi_otel import ConfigurationError, parse_limit
from ravi_otel.carrier._configuration import Keys, check_configuration, place_of, read_hosts, read_keys, read_peers
from ravi_otel.carrier._token import (
    LONGEST,
    VERSION,
    Loan,
    MalformedError,
    ModelAmount,
    SharedScope,
    Slots,
    Spent,
    Token,
    read_limit,
    read_spent,
    read_token,
    write_limit,
    write_spent,
    write_token,
)
from ravi_otel.policy._limits import Kind, Limit, ScopeKind

OLD = read_keys("old:0123456789abcdef")
BOTH = read_keys("new:fedcba9876543210,old:0123456789abcdef")
MODELS = Limit(kind="cost", value=7, by="model")
LEFT = (ModelAmount("cost", None, "gpt", 3), ModelAmount("cost", "bob", "", 0))
PLAIN = Token(expires_ms=1, audience="b:80")
FULL = Token(
    expires_ms=2**41,
    audience="b.internal:80",
    run_id="r" * 32,
    run_name="Tür 'a\", b",
    session_id="s=1,2;3",
    tenant_id="t%2C",
    user_id="u",
    tags={"team": "blue"},
    agent_name="ä",
    scope_id="f" * 32,
    depth=3,
    priority=8,
    deadline_ms=2**40,
    trace_id="0" * 32,
    store="abc",
    ceilings=(parse_limit("tokens=5:admission=strict"), parse_limit("tool.search=2")),
    local=(parse_limit("charge.rows=7"), parse_limit("tokens@writer=9"), parse_limit("working=3s")),
    shared=(SharedScope(ScopeKind.RUN, "f" * 32, None, "t", ((parse_limit("cost=1.5usd:warn=0.5:on=stop:suspend=allow"), "e1"),)),),
    loan=Loan("a" * 32, (parse_limit("tokens=5:admission=strict"), parse_limit("tokens@bob=3"), MODELS), ("0123456789ab",), LEFT),
    models=LEFT,
    slots=Slots("f" * 32, 50),
)
SPENT = Spent("a" * 32, {"tokens": 5, "charge": 2}, models=LEFT)


def sealed(said, keys=OLD, purpose="ravi-carry-1", version=VERSION):
    payload = said if isinstance(said, bytes) else json.dumps(said).encode()
    key_id, signature = keys.sign(purpose, payload)
    return ".".join([version, key_id, *(base64.urlsafe_b64encode(each).rstrip(b"=").decode() for each in (payload, signature))])


@pytest.mark.parametrize("token", [PLAIN, FULL], ids=["least", "most"])
def test_what_was_written_is_read_word_for_word(token):
    assert read_token(write_token(token, OLD), OLD, trusted=False) == token


def test_what_came_back_is_read_as_it_was_written():
    assert read_spent(write_spent(SPENT, OLD), OLD) == SPENT


@pytest.mark.parametrize(
    "spec",
    [
        "tokens=5",
        "cost=0.000000001usd",
        "session.requests=5:on=observe",
        "handoff.writer.turns=2",
        "tokens=9:count=input+4*output",
        "time=1s:on=stop",
        "session.requests=5:per=day:tz=Europe/Berlin",
        "cost=1usd:per=90m:by=user",
        "tokens=3:unbounded=window:admission=strict:warn=0.1",
    ],
)
def test_a_limit_is_the_very_same_on_the_other_side(spec):
    limit = parse_limit(spec)
    assert read_limit(json.loads(json.dumps(write_limit(limit)))) == limit


def test_the_first_key_signs_and_each_of_them_verifies():
    assert read_token(write_token(PLAIN, OLD), BOTH, trusted=False) == PLAIN
    assert write_token(PLAIN, BOTH).split(".")[1] == "new"


@pytest.mark.parametrize("place", range(4))
def test_what_was_changed_in_any_part_is_not_believed(place):
    parts = write_token(FULL, OLD).split(".")
    parts[place] = "x" + parts[place][1:]
    with pytest.raises(MalformedError, match=r"forged|malformed"):
        read_token(".".join(parts), OLD, trusted=True)


def test_what_another_key_signed_under_the_same_id_is_forged():
    with pytest.raises(MalformedError, match="forged"):
        read_token(write_token(PLAIN, read_keys("old:another secret here")), OLD, trusted=True)


def test_what_was_signed_to_come_back_is_no_token_and_the_other_way_round():
    with pytest.raises(MalformedError, match="forged"):
        read_token(write_spent(SPENT, OLD), OLD, trusted=False)
    with pytest.raises(MalformedError, match="forged"):
        read_spent(write_token(PLAIN, OLD), OLD)


def test_without_a_signature_only_a_peer_that_is_trusted_is_believed():
    written = write_token(PLAIN, Keys())
    assert read_token(written, OLD, trusted=True) == PLAIN
    with pytest.raises(MalformedError, match="unsigned"):
        read_token(written, OLD, trusted=False)


def test_what_comes_back_is_never_believed_without_a_signature():
    assert write_spent(SPENT, Keys()) is None
    with pytest.raises(MalformedError, match="unsigned"):
        read_spent(write_token(PLAIN, Keys()), OLD)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"[" * 3_000,
        b"[1]",
        b'{"x":NaN}',
        b"\xff",
        {},
        {"x": 1.5},
        {"x": -1, "au": "b", "d": 0, "p": 0},
        {"x": 1, "au": "b", "d": 0, "p": 9},
        {"x": True, "au": "b", "d": 0, "p": 0},
        {"x": 1, "au": "b\n", "d": 0, "p": 0},
        {"x": 1, "au": "b", "d": 0, "p": 0, "r": "r" * 257},
        {"x": 1, "au": "b", "d": 0, "p": 0, "r": 5},
        {"x": 1, "au": "b", "d": 0, "p": 0, "l": [{"k": "tokens", "v": -1}]},
        {"x": 1, "au": "b", "d": 0, "p": 0, "l": [{"k": "tokens", "v": 2**63}]},
        {"x": 1, "au": "b", "d": 0, "p": 0, "l": [{"k": "tokens"}]},
        {"x": 1, "au": "b", "d": 0, "p": 0, "l": [{"k": "tokens", "v": 1, "x": "explode"}]},
        {"x": 1, "au": "b", "d": 0, "p": 0, "l": ["tokens=5"]},
        {"x": 1, "au": "b", "d": 0, "p": 0, "l": [{"k": "agents", "v": 0}]},
        {"x": 1, "au": "b", "d": 0, "p": 0, "l": [{"k": "tokens", "v": 5, "s": "tenant"}]},
        {"x": 1, "au": "b", "d": 0, "p": 0, "c": [{"k": "tokens", "v": 5, "p": "day"}]},
        {"x": 1, "au": "b", "d": 0, "p": 0, "sh": [["run", "i", None, None, [[{"k": "tokens", "v": 1, "s": "tenant"}, None]]]]},
        {"x": 1, "au": "b", "d": 0, "p": 0, "sl": ["i", 0]},
        {"x": 1, "au": "b", "d": 0, "p": 0, "l": [{"k": "rows", "v": 1}] * 65},
        {"x": 1, "au": "b", "d": 0, "p": 0, "lo": ["a" * 32, [], []]},
        {"x": 1, "au": "b", "d": 0, "p": 0, "lo": ["a" * 32, [{"k": "time", "v": 1}], []]},
        {"x": 1, "au": "b", "d": 0, "p": 0, "lo": ["a" * 32, [{"k": "tokens", "v": 1}]]},
        {"x": 1, "au": "b", "d": 0, "p": 0, "lo": ["../x", [{"k": "tokens", "v": 1}], []]},
        {"x": 1, "au": "b", "d": 0, "p": 0, "m": [["tokens", None, "gpt", -1]]},
        {"x": 1, "au": "b", "d": 0, "p": 0, "m": [["tokens", None, "gpt"]]},
        {"x": 1, "au": "b", "d": 0, "p": 0, "l": [{"k": "tokens", "v": 1, "e": "user"}]},
        {"x": 1, "au": "b", "d": 0, "p": 0, "sh": [["agent", "i", None, None, []]]},
        {"x": 1, "au": "b", "d": 0, "p": 0, "sh": [["run", "i", None, None, [[{"k": "tokens", "v": 1}]]]]},
        {"x": 1, "au": "b", "d": 0, "p": 0, "sh": [[{}, "i", None, None, []]]},
    ],
    ids=str,
)
def test_what_is_signed_and_makes_no_sense_is_malformed_and_nothing_else(said):
    with pytest.raises(MalformedError, match="malformed"):
        read_token(sealed(said), OLD, trusted=False)


def test_fields_that_only_tell_may_be_added_without_older_readers_believing_nothing():
    limit = {"k": "tokens", "v": 1, "odd": 1}
    shared = ["run", "i", None, None, [[limit, None, "odd"]], "odd"]
    said = {"x": 1, "au": "b", "d": 0, "p": 0, "odd": [1], "l": [limit], "sh": [shared], "lo": ["a" * 32, [limit], [], "odd"]}
    token = read_token(sealed(said), OLD, trusted=False)
    assert (token.local, token.loan.amounts) == ((parse_limit("tokens=1"),), {"tokens": 1})
    assert token.shared[0].limits == ((parse_limit("tokens=1"), None),)


@pytest.mark.parametrize("version", ["1", str(int(VERSION) + 1)])
def test_another_way_of_writing_is_told_from_nonsense(version):
    with pytest.raises(MalformedError, match="version"):
        read_token(sealed({"x": 1, "au": "b", "d": 0, "p": 0}, version=version), OLD, trusted=False)


def test_what_would_be_too_long_is_not_written_and_not_read():
    long = Token(expires_ms=1, audience="b", local=tuple(Limit(kind=f"{'k' * 100}{at}", value=1) for at in range(60)))
    assert write_token(long, OLD) is None
    with pytest.raises(MalformedError, match="malformed"):
        read_token(f"{VERSION}.old." + "A" * LONGEST + ".A", OLD, trusted=True)


def test_random_bytes_in_a_token_never_raise_anything_else():
    draw, good = random.Random(8), write_token(FULL, OLD)
    for _ in range(int(os.environ.get("RAVI_LONG") or 3_000)):
        text = list(good)
        for _ in range(draw.randint(1, 4)):
            text[draw.randrange(len(text))] = chr(draw.choice((draw.randrange(32, 127), draw.randrange(0x10FFFF))))
        changed = "".join(text)
        try:
            assert read_token(changed, OLD, trusted=True) == FULL
        except MalformedError as error:
            assert str(error) in {"malformed", "forged", "unsigned", "version"}  # noqa: PT017 - most of them raise, and none otherwise


# -- what is configured ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RAVI_CARRY_KEYS", "0123456789abcdef-0123456789"),
        ("RAVI_CARRY_KEYS", "k1:tiny"),
        ("RAVI_CARRY_KEYS", "k 1:0123456789abcdef"),
        ("RAVI_CARRY_KEYS", "k1:0123456789abcdef,k1:0123456789abcdeg"),
        ("RAVI_CARRY_KEYS", "0123456789abcdef-secret:k1"),
        ("RAVI_CARRY_KEYS", "k1:fedcba9876543210,0123456789:k1"),
        ("RAVI_CARRY_TO", "*"),
        ("RAVI_CARRY_TO", "http://b.internal"),
        ("RAVI_CARRY_TO", "b.internal:99999"),
        ("RAVI_CARRY_TO", "b.internal/x"),
        ("RAVI_CARRY_TRUST", "10.0.0.0/99"),
        ("RAVI_CARRY_AS", "a b"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named_and_no_secret_is_shown(name, value):
    with pytest.raises(ConfigurationError, match=name) as raised:
        check_configuration({name: value})
    assert not any(secret in str(raised.value) for secret in ("0123456789", "tiny"))


def test_instrument_refuses_a_variable_that_cannot_be_used(monkeypatch):
    monkeypatch.setenv("RAVI_CARRY_TO", "*")
    with pytest.raises(ConfigurationError, match="RAVI_CARRY_TO"):
        ravi_otel.instrument()


def test_keys_are_not_shown():
    assert "0123" not in repr(OLD)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://B.internal/x", ("b.internal", 80)),
        ("https://b.internal.", ("b.internal", 443)),
        ("http://b.internal:8080?x", ("b.internal", 8080)),
        ("http://b.internal@evil.com/", ("evil.com", 80)),
        ("http://[::1]:7/", ("::1", 7)),
        ("b.internal", None),
        ("", None),
        ("http://", None),
        ("http://evil.com\\@b.internal/", None),
        ("http://b.internal\t/", None),
        ("http://b.internal\n.evil.com/", None),
        ("http://b.internal:x/", None),
        ("http://[::1/", None),
        ("http://\uff42.internal/", None),
        ("http://" + "b" * 70_000, None),
    ],
    ids=range(15),
)
def test_where_a_url_leads_is_known_for_certain_or_not_at_all(url, place):
    assert place_of(url) == place


def test_hosts_are_listed_by_name_by_ending_and_by_port():
    hosts = read_hosts("RAVI_CARRY_TO", "a.io, *.svc.local:8443 ,[::1]")
    assert hosts.has("a.io", 80)
    assert hosts.has("x.svc.local", 8443)
    assert hosts.has("::1", 1)
    assert not hosts.has("svc.local", 8443)
    assert not hosts.has("xsvc.local", 8443)
    assert not hosts.has("x.svc.local", 443)
    assert not hosts.has("b.a.io", 80)


def test_peers_are_trusted_by_network_and_by_name():
    peers = read_peers("RAVI_CARRY_TRUST", "10.0.0.0/8,::1,unix")
    assert peers.has("10.1.2.3")
    assert peers.has("::ffff:10.1.2.3")
    assert peers.has("::1")
    assert peers.has("unix")
    assert not any(peers.has(each) for each in ("11.0.0.1", "", None, "10.0.0", "x" * 10_000))


def test_no_kind_of_amount_is_read_beyond_what_a_store_holds():
    with pytest.raises(MalformedError):
        read_spent(sealed({"i": "a" * 32, "u": {Kind.TOKENS.value: 2**53 + 1}}, purpose="ravi-return-1"), OLD)
