"""Be what is carried: who works for whom, what they may use, and a signature over all of it.

A token is `VERSION.KEY.PAYLOAD.SIGNATURE`, each part in the base64 of URLs, so that it is a baggage value and a header value as it is.
A token without a signature has no key, and is for those who trust the peer it comes from.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from json import dumps, loads  # as they are now: the program may make tools of that module's functions
from typing import Any, Final, NamedTuple, cast

from ravi_otel._enforcement.ledger.account import nature_of
from ravi_otel.carrier.ceilings import MODEL, SUMS
from ravi_otel.carrier.keys import Keys
from ravi_otel.carrier.written import MalformedError, amounts, most_of, optional_text, read_limit, text, whole, write_limit
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._checks import MAX_COUNT, MAX_NAME
from ravi_otel.policy._limits import Kind, Limit, ScopeKind

LONGEST: Final = 4_000
"""How many characters a token has at most; what is longer is neither written nor read."""

VERSION: Final = "2"
"""Which way of writing it is: a reader passes over what it does not know in its own, so a field that only tells may be added.

One without which a limit is looser, and any other change, needs the next number: then nothing of it is believed by older readers.
"""

_CARRY: Final = "ravi-carry-1"
_RETURN: Final = "ravi-return-1"
_PARTS: Final = 4
_MOST_LIMITS: Final = 64
_MOST_SCOPES: Final = 16
_MOST_TAGS: Final = 16
_MOST_MODELS: Final = 256
_DIGITS: Final = 12
_DEEPEST: Final = 1_000_000
_SAFE: Final = re.compile(r"[A-Za-z0-9_-]*")
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,3}")
_HEX: Final = re.compile(r"[0-9a-f]{8,64}")
_SHARED_KINDS: Final = frozenset({ScopeKind.PROCESS, ScopeKind.TENANT, ScopeKind.SESSION, ScopeKind.RUN})


class ModelAmount(NamedTuple):
    """What there is of one model, in a limit that counts each by itself: of which kind, for which agent alone, and how much."""

    kind: str
    agent: str | None
    model: str
    amount: int


@dataclass(frozen=True, slots=True)
class Loan:
    """An allowance for one request under an id that is good once: `limits` of all sums that the lender is held to.

    `held` are the counters that it is held on, by short names: who counts in the same store leaves them to the lender. `models` are
    those of which there is another amount than of any.
    """

    id: str
    limits: tuple[Limit, ...]
    held: tuple[str, ...] = ()
    models: tuple[ModelAmount, ...] = ()

    @property
    def amounts(self) -> Mapping[str, int]:
        """Return how much there is of which kind, in inner units, whichever agent or model uses it."""
        return {each.counted: each.value for each in self.limits if each.agent is None and each.by is None}


@dataclass(frozen=True, slots=True)
class SharedScope:
    """A scope of the caller whose limits are counted in a store that both may have; each limit with its epoch there.

    The `tenant_id` is its own: a run inside of another may have one where that has none.
    """

    kind: ScopeKind
    id: str
    name: str | None
    tenant_id: str | None
    limits: Sequence[tuple[Limit, str | None]]


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots of the caller's run, which are counted in a store: of which run, and how many there are in all."""

    run_scope_id: str
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """Who works for whom, and within what.

    `expires_ms` and `deadline_ms` are UTC, in ms since 1970. `ceilings` are limits that hold for all work the token is for; those of
    `shared` scopes hold instead where both count in the store `store`. `local` ceilings hold there, too: nobody else counts them.
    `models` say of limits among them that count by model what is left to whom.
    """

    expires_ms: int
    audience: str
    run_id: str | None = None
    run_name: str | None = None
    session_id: str | None = None
    tenant_id: str | None = None
    user_id: str | None = None
    agent_name: str | None = None
    scope_id: str | None = None
    depth: int = 0
    priority: int = 2
    deadline_ms: int | None = None
    trace_id: str | None = None
    store: str | None = None
    ceilings: tuple[Limit, ...] = ()
    local: tuple[Limit, ...] = ()
    shared: tuple[SharedScope, ...] = ()
    loan: Loan | None = None
    slots: Slots | None = None
    models: tuple[ModelAmount, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Spent:
    """What came back of a loan: all that was used on it, and the other kinds that were used besides, in inner units.

    `charged` are the counters of the lender's store, by short names, to which those others were charged already. Work `inside` of the
    lender's own scope, in one process, was added up there, too. `models` say what was used by an agent, of its limits, and of a model;
    an empty one is any. Where both count in the `same_store`, nothing has to be lent.
    """

    loan_id: str
    amounts: Mapping[str, int]
    charged: tuple[str, ...] = ()
    inside: bool = False
    models: tuple[ModelAmount, ...] = ()
    same_store: bool = False


_NAMES: Final = (
    ("r", "run_id"),
    ("rn", "run_name"),
    ("s", "session_id"),
    ("t", "tenant_id"),
    ("u", "user_id"),
    ("a", "agent_name"),
    ("i", "scope_id"),
    ("tr", "trace_id"),
    ("st", "store"),
)


def write_token(token: Token, keys: Keys) -> str | None:
    """Write a token, signed where there is a key; None where it would be too long."""
    said: dict[str, Any] = {"x": token.expires_ms, "au": token.audience, "d": token.depth, "p": token.priority}
    said.update({short: getattr(token, name) for short, name in _NAMES if getattr(token, name) is not None})
    if token.deadline_ms is not None:
        said["dl"] = token.deadline_ms
    for short, limits in (("c", token.ceilings), ("l", token.local)):
        if limits:
            said[short] = [write_limit(limit) for limit in limits]
    if token.slots is not None:
        said["sl"] = [token.slots.run_scope_id, token.slots.most]
    if token.tags:
        said["g"] = dict(token.tags)
    if token.shared:
        said["sh"] = [_said_of(each) for each in token.shared]
    if token.loan is not None:
        said["lo"] = [token.loan.id, [write_limit(limit) for limit in token.loan.limits], list(token.loan.held)]
    if token.models:
        said["m"] = [list(each) for each in token.models]
    return _seal(_CARRY, said, keys)


def read_token(given: str, keys: Keys, *, trusted: bool) -> Token:
    """Read a token that is signed by a known key, or comes from who is `trusted`.

    What it does not know in a token of this version it passes over. Raises MalformedError, whose text is "forged", "unsigned",
    "malformed", or "version".
    """
    said = _open(_CARRY, given, keys, trusted=trusted)
    try:
        return _token(said)
    except (MalformedError, ConfigurationError, ValueError, TypeError, KeyError) as error:
        raise MalformedError("malformed") from error


def write_spent(spent: Spent, keys: Keys) -> str | None:
    """Write what was used of a loan; None without a key, or where it would be too long."""
    if not keys:
        return None
    said = {"i": spent.loan_id, "u": dict(spent.amounts), "c": list(spent.charged), "n": int(spent.inside), "s": int(spent.same_store)}
    return _seal(_RETURN, {**said, "m": [list(each) for each in spent.models]} if spent.models else said, keys)


def read_spent(given: str, keys: Keys) -> Spent:
    """Read what was used of a loan; raises MalformedError for what is not signed by a known key."""
    said = _open(_RETURN, given, keys, trusted=False)
    try:
        return Spent(
            _id(said["i"]),
            amounts(said["u"]),
            _counters(said["c"]),
            whole(said["n"], 1) == 1,
            _models(said.get("m", [])),
            whole(said.get("s", 0), 1) == 1,
        )
    except KeyError as error:
        raise MalformedError("malformed") from error


def _seal(purpose: str, said: Mapping[str, Any], keys: Keys) -> str | None:
    payload = dumps(said, separators=(",", ":")).encode("ascii")
    key_id, signature = keys.sign(purpose, payload) if keys else ("", b"")
    sealed = f"{VERSION}.{key_id}.{_encoded(payload)}.{_encoded(signature)}"
    return sealed if len(sealed) <= LONGEST else None


def _open(purpose: str, given: str, keys: Keys, *, trusted: bool) -> dict[str, Any]:
    parts = given.split(".", _PARTS)
    if len(given) > LONGEST or len(parts) != _PARTS or not all(_SAFE.fullmatch(part) for part in parts[1:]):
        raise MalformedError("malformed")
    if parts[0] != VERSION:
        raise MalformedError("version" if _NUMBER.fullmatch(parts[0]) else "malformed")
    try:
        payload, signature = _decoded(parts[2]), _decoded(parts[3])
    except (ValueError, binascii.Error) as error:
        raise MalformedError("malformed") from error
    if parts[1] or signature:
        if not keys.verifies(purpose, parts[1], payload, signature):
            raise MalformedError("forged")
    elif not trusted:
        raise MalformedError("unsigned")
    try:
        said: Any = loads(payload)
    except (ValueError, RecursionError) as error:
        raise MalformedError("malformed") from error
    if type(said) is not dict:
        raise MalformedError("malformed")
    return cast("dict[str, Any]", said)


def _token(said: dict[str, Any]) -> Token:
    names = {name: optional_text(said.get(short)) for short, name in _NAMES}
    deadline = said.get("dl")
    loan = _loan(said["lo"]) if "lo" in said else None
    models = _models(said.get("m", []))
    return Token(
        expires_ms=whole(said["x"]),
        audience=text(said["au"]),
        depth=whole(said["d"], _DEEPEST),
        priority=whole(said["p"], 8),
        deadline_ms=None if deadline is None else whole(deadline),
        ceilings=_limits(said.get("c", [])),
        local=_limits(said.get("l", [])),
        shared=tuple(_shared(each) for each in _listed(said.get("sh", []), _MOST_SCOPES)),
        loan=loan if loan is None else replace(loan, models=models),
        models=models,
        slots=_slots(said["sl"]) if "sl" in said else None,
        tags=_tags(said.get("g", {})),
        **names,
    )


def _said_of(shared: SharedScope) -> list[Any]:
    return [shared.kind.value, shared.id, shared.name, shared.tenant_id, [[write_limit(limit), epoch] for limit, epoch in shared.limits]]


def _limits(given: object) -> tuple[Limit, ...]:
    """Read limits of the very run that goes on: none of another scope, none of a window, and none that no run can have."""
    limits = tuple(read_limit(each) for each in _listed(given, _MOST_LIMITS))
    if any(
        each.scope or each.scope_name or each.per or each.by not in (None, MODEL) or (each.kind == Kind.AGENTS and each.value < 1)
        for each in limits
    ):
        raise MalformedError("limit")
    return limits


def _shared(given: object) -> SharedScope:
    kind, own_id, name, tenant_id, limits = _first(given, 5)
    scope = ScopeKind(kind)
    if scope not in _SHARED_KINDS:
        raise MalformedError("scope")
    pairs = [_first(each, 2) for each in _listed(limits, _MOST_LIMITS)]
    known = tuple((read_limit(one), optional_text(epoch)) for one, epoch in pairs)
    if any(one.scope not in (None, scope) or one.kind == Kind.AGENTS for one, _ in known):
        raise MalformedError("limit")
    return SharedScope(scope, text(own_id), optional_text(name), optional_text(tenant_id), known)


def _slots(given: object) -> Slots:
    run_scope_id, most = _first(given, 2)
    if whole(most, MAX_COUNT) < 1:
        raise MalformedError("slots")
    return Slots(text(run_scope_id), most)


def _tags(given: object) -> dict[str, str]:
    found = cast("dict[str, object]", given)
    if type(given) is not dict or len(found) > _MOST_TAGS:
        raise MalformedError("tags")
    return checks.tags("tags", {text(name): text(value) for name, value in found.items()})


def _loan(given: object) -> Loan:
    own_id, lent, held = _first(given, 3)
    limits = _limits(lent)
    if not limits or any(nature_of(each) not in SUMS for each in limits):
        raise MalformedError("loan")
    return Loan(_id(own_id), limits, _counters(held))


def _models(given: object) -> tuple[ModelAmount, ...]:
    found = (_first(each, 4) for each in _listed(given, _MOST_MODELS))
    return tuple(
        ModelAmount(text(kind), optional_text(agent), _model(model), whole(amount, most_of(kind))) for kind, agent, model, amount in found
    )


def _model(given: object) -> str:
    """Read the name of a model, which may be any text that somebody has asked for; empty: of none that was asked."""
    if type(given) is not str or len(given) > MAX_NAME:
        raise MalformedError("model")
    return given


def counter_name(key: str) -> str:
    """Return a short name for a counter, the same in every process."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


def _counters(given: object) -> tuple[str, ...]:
    return tuple(_id(each) for each in _listed(given, _MOST_LIMITS))


def _id(given: object) -> str:
    if _HEX.fullmatch(text(given)) is None:
        raise MalformedError("id")
    return text(given)


def _first(given: object, count: int) -> list[Any]:
    """Read the fields that are known of a list; others behind them are passed over."""
    return _listed(given, _MOST_LIMITS)[:count]


def _listed(given: object, most: int) -> list[Any]:
    found = cast("list[Any]", given)
    if type(given) is not list or len(found) > most:
        raise MalformedError("list")
    return found


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decoded(given: str) -> bytes:
    return base64.b64decode(given + "=" * (-len(given) % 4), altchars=b"-_", validate=True)
