"""Whatever comes in as baggage, nothing raises and no limit gets looser: `RAVI_LONG=1000000` reads so many headers."""

from __future__ import annotations

import base64
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import ravi_otel
from ravi_otel._runtime.state import STATE
from ravi_otel.carrier._inbound import read
from ravi_otel.carrier._remaining import store_id

LONG = int(os.environ.get("RAVI_LONG") or 3_000)
URL = "http://127.0.0.1:1"
ODD = "\x00\n\r,;=%\"\\ .ü€\ud800é\u202e'{}[]"
NUMBERS: list[Any] = [0, 1, -1, 2**63, 2**53 + 1, 1e308, float("nan"), float("inf"), True, None, "7", "", [], {}, "x" * 5_000]


MUCH = 10**12
LOOSER: dict[str, Any] = {
    "l": [{"k": "tokens", "v": MUCH}, {"k": "working", "v": MUCH}],
    "c": [{"k": "tokens", "v": MUCH, "x": "observe"}],
    "sh": [
        ["session", "s", None, "t", [[{"k": "tokens", "v": MUCH}, None]]],
        ["process", "p", None, None, [[{"k": "tokens", "v": MUCH}, "e"]]],
    ],
    "p": 8,
    "dl": MUCH * 100,
    "s": "s",
    "t": "t",
    "i": "0",
    "d": 0,
    "a": "somebody",
    "st": "store",
}
"""What somebody writes who wants to be allowed more."""


@pytest.fixture(autouse=True)
def _configured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RAVI_CARRY_KEYS", "k2:the newest secret of all,k1:a secret that is long enough")
    monkeypatch.setenv("RAVI_CARRY_TO", "127.0.0.1")
    monkeypatch.setenv("RAVI_CARRY_TRUST", "10.0.0.1")
    yield
    ravi_otel.uninstrument()


def genuine() -> list[str]:
    """Write baggage as it is, of runs of several kinds, one of them with a loan."""
    found: list[str] = []
    for limits, more in (([], {}), (["tokens=900", "time=60s", "tool_calls=3"], {"session_id": "s", "tenant_id": "t"}), (["cost=2"], {})):
        with ravi_otel.run("r", limits=limits, **more):
            found.append(ravi_otel.outbound_headers(URL)["baggage"])
            if limits == ["cost=2"]:
                found.append(ravi_otel.outbound_headers(URL, lend=ravi_otel.lend(cost=1))["baggage"])
    return found


def flipped(rng: random.Random, text: str, _all: list[str]) -> str:
    at = rng.randrange(len(text))
    return text[:at] + chr(ord(text[at]) ^ (1 << rng.randrange(7))) + text[at + 1 :]


def cut(rng: random.Random, text: str, _all: list[str]) -> str:
    a, b = sorted((rng.randrange(len(text)), rng.randrange(len(text) + 1)))
    return text[:a] + text[b:] if rng.random() < 0.5 else text[a:b]


def twice(rng: random.Random, text: str, every: list[str]) -> str:
    return f"{text},{rng.choice(every)}"


def sprinkled(rng: random.Random, text: str, _all: list[str]) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + "".join(rng.choice(ODD) for _ in range(rng.randrange(1, 6))) + text[at:]


def swollen(rng: random.Random, text: str, _all: list[str]) -> str:
    return f"{text},filler={'x' * rng.choice((100, 4_000, 9_000))}"


def spliced(rng: random.Random, text: str, every: list[str]) -> str:
    """Put the payload of one under the signature of another, or under another key's name."""
    mine, theirs = text.split("."), rng.choice(every).split(".")
    at = rng.randrange(1, len(mine))
    mine[at] = rng.choice([theirs[at % len(theirs)], "k1", "k2", ""])
    return ".".join(mine)


def reworded(rng: random.Random, text: str, _all: list[str], looser: Mapping[str, Any] | None = None) -> str:
    """Change what the payload says, and keep the signature, or leave it out as one does for a peer that trusts."""
    parts = text.partition("ravi.carry=")[2].split(".")
    try:
        said = json.loads(base64.urlsafe_b64decode(parts[2] + "=="))
    except (ValueError, IndexError):  # changed already
        return flipped(rng, text, _all)
    for _ in range(rng.randrange(1, 4)):
        name = rng.choice([*said, "l", "c", "sh", "lo", "p", "x", "zz"] if looser is None else list(looser))
        said[name] = rng.choice(NUMBERS) if looser is None else looser[name]
    payload = base64.urlsafe_b64encode(json.dumps(said).encode()).rstrip(b"=").decode()
    signed = looser is None and len(parts) > 3 and rng.random() < 0.5
    return f"ravi.carry={parts[0]}.{parts[1]}.{payload}.{parts[3]}" if signed else f"ravi.carry={parts[0]}..{payload}."


CHANGES: list[Callable[[random.Random, str, list[str]], str]] = [flipped, cut, twice, sprinkled, swollen, spliced, reworded]


def packed(rng: random.Random, text: str) -> Any:
    """Give it as servers and queues give headers."""
    raw = text.encode("utf-8", "surrogatepass")
    return rng.choice(
        [
            {"baggage": text},
            {"Baggage": raw},
            [(b"baggage", raw), (b"traceparent", raw)],
            [("baggage", text), ("baggage", text)],
            {"baggage": [text]},
            {"baggage": None, "tracestate": text},
            text,
            [(text,)],
        ]
    )


def test_nothing_that_comes_in_raises_or_is_believed_but_what_was_signed() -> None:
    rng = random.Random(8)
    every = genuine()
    known = {id_of(text) for text in every}
    seen: Counter[str | None] = Counter()
    for _ in range(LONG):
        text = rng.choice(every)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            text = rng.choice(CHANGES)(rng, text or "ravi.carry=2.k1.e30.AA", every) if "ravi.carry=" in text else text + rng.choice(every)
        inbound = read(packed(rng, text))
        seen[inbound.rejected] += 1
        if inbound.token is not None:
            assert repr(inbound.token) in known
    assert {"missing", "duplicate", "oversized", "malformed", "forged", "unsigned", "replayed"} <= set(seen)
    print(f"{LONG} headers: {dict(seen)}, 0 raised, 0 believed that were not signed")


def id_of(text: str) -> str:
    return repr(read({"baggage": text}).token)


@pytest.mark.parametrize("ledger", ["memory", "sqlite"])
def test_what_a_trusted_peer_says_only_tightens(ledger: str, tmp_path: Path) -> None:
    rng = random.Random(9)
    ravi_otel.instrument(limits=["tokens=700"], ledger="memory:" if ledger == "memory" else f"sqlite:{tmp_path}/ledger.db")
    looser = LOOSER | {"st": store_id(STATE.engine.ledger) or "store"}  # with one store, the very counters are named
    with ravi_otel.run("living", session_id="s", tenant_id="t", limits=["session.tokens=300", "tenant.tokens=400"]) as living:
        outer = [account for account in living.scope.plan.accounts() if account.kind == "tokens"]
        every = genuine()
        believed = 0
        for _ in range(LONG // 10):
            text = reworded(rng, rng.choice(every), every, looser)
            with ravi_otel.continue_run({"baggage": text}, peer="10.0.0.1", limits=["tokens=500"]) as run:
                believed += run.rejected is None
                here = [account for account in run.scope.plan.accounts() if account.kind == "tokens"]
                lent = min((each.value for each in here if each.origin.endswith("lend()")), default=MUCH)
                # What the living run has lent itself is charged to it when that comes back.
                assert all(any(account is each for each in here) or account.held >= lent for account in outer)
                assert min(account.value for account in here) <= 300
            assert [account.value for account in outer] == [700, 400, 300]
    print(f"{LONG // 10} from a trusted peer, {believed} believed, 0 looser")
    assert believed > LONG // 100
