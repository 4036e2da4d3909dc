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
from dataclasses import dataclass, field
from json import dumps, loads  # as they are now: the program may make tools of that module's functions
from typing import Any, Final, cast

from ravi_otel.carrier.keys import Keys
from ravi_otel.carrier.written import LENT, MalformedError, amounts, optional_text, read_limit, text, whole, write_limit
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy.checks import MAX_COUNT
from ravi_otel.policy.limits import Kind, Limit, ScopeKind
from ravi_otel.runtime.config.tags import check_tags

LONGEST: Final = 4_000
"""How many characters a token has at most; what is longer is neither written nor read."""

_VERSION: Final = "1"
_CARRY: Final = "ravi-carry-1"
_RETURN: Final = "ravi-return-1"
_PARTS: Final = 4
_MOST_LIMITS: Final = 64
_MOST_SCOPES: Final = 16
_MOST_TAGS: Final = 16
_DIGITS: Final = 12
_DEEPEST: Final = 1_000_000
_SAFE: Final = re.compile(r"[A-Za-z0-9_-]*")
_HEX: Final = re.compile(r"[0-9a-f]{8,64}")
_SHARED_KINDS: Final = frozenset({ScopeKind.PROCESS, ScopeKind.TENANT, ScopeKind.SESSION, ScopeKind.RUN})


@dataclass(frozen=True, slots=True)
class Loan:
    """Be an allowance for one request: how much of which kind, in inner units, under an id that is good once.

    One that is `strict` is never passed: the worst case of each call is held on it. `held` are the counters that it is held on, by short
    names: who counts in the same store leaves them to the lender.
    """

    id: str
    amounts: Mapping[str, int]
    strict: bool = False
    held: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SharedScope:
    """Be a scope of the caller whose limits are counted in a store that both may have; each limit with its epoch there.

    The `tenant_id` is its own: a run inside of another may have one where that has none.
    """

    kind: ScopeKind
    id: str
    name: str | None
    tenant_id: str | None
    limits: Sequence[tuple[Limit, str | None]]


@dataclass(frozen=True, slots=True)
class Slots:
    """Be the slots of the caller's run, which are counted in a store: of which run, and how many there are in all."""

    run_scope_id: str
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """Say who works for whom, and within what.

    `expires_ms` and `deadline_ms` are UTC, in ms since 1970. `ceilings` are limits that hold for all work the token is for; those of
    `shared` scopes hold instead where both count in the store `store`. `local` ceilings hold there, too: nobody else counts them.
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
    tags: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Spent:
    """Be what came back of a loan: all that was used on it, and the other kinds that were used besides, in inner units.

    `charged` are the counters of the lender's store, by short names, to which those others were charged already. Work `inside` of the
    lender's own scope, in one process, was added up there, too.
    """

    loan_id: str
    amounts: Mapping[str, int]
    charged: tuple[str, ...] = ()
    inside: bool = False


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
_ALL: Final = frozenset({*(short for short, _ in _NAMES), "x", "au", "d", "p", "dl", "c", "l", "sh", "lo", "g", "sl"})


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
        said["lo"] = [token.loan.id, dict(token.loan.amounts), int(token.loan.strict), list(token.loan.held)]
    return _seal(_CARRY, said, keys)


def read_token(given: str, keys: Keys, *, trusted: bool) -> Token:
    """Read a token that is signed by a known key, or comes from who is `trusted`.

    Raises MalformedError, whose text is "forged", "unsigned" or "malformed".
    """
    said = _open(_CARRY, given, keys, trusted=trusted)
    try:
        return _token(said)
    except (MalformedError, ConfigurationError, ValueError, TypeError, KeyError) as error:
        raise MalformedError("malformed") from error


def write_spent(spent: Spent, keys: Keys) -> str | None:
    """Write what was used of a loan; None without a key, or where it would be too long."""
    return (
        _seal(_RETURN, {"i": spent.loan_id, "u": dict(spent.amounts), "c": list(spent.charged), "n": int(spent.inside)}, keys)
        if keys
        else None
    )


def read_spent(given: str, keys: Keys) -> Spent:
    """Read what was used of a loan; raises MalformedError for what is not signed by a known key."""
    said = _open(_RETURN, given, keys, trusted=False)
    try:
        return Spent(_id(said["i"]), amounts(said["u"]), _counters(said["c"]), whole(said["n"], 1) == 1)
    except KeyError as error:
        raise MalformedError("malformed") from error


def _seal(purpose: str, said: Mapping[str, Any], keys: Keys) -> str | None:
    payload = dumps(said, separators=(",", ":")).encode("ascii")
    key_id, signature = keys.sign(purpose, payload) if keys else ("", b"")
    sealed = f"{_VERSION}.{key_id}.{_encoded(payload)}.{_encoded(signature)}"
    return sealed if len(sealed) <= LONGEST else None


def _open(purpose: str, given: str, keys: Keys, *, trusted: bool) -> dict[str, Any]:
    parts = given.split(".", _PARTS)
    if len(given) > LONGEST or len(parts) != _PARTS or parts[0] != _VERSION or not all(_SAFE.fullmatch(part) for part in parts[1:]):
        raise MalformedError("malformed")
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
    if not _ALL.issuperset(said):
        raise MalformedError("malformed")
    names = {name: optional_text(said.get(short)) for short, name in _NAMES}
    deadline = said.get("dl")
    return Token(
        expires_ms=whole(said["x"]),
        audience=text(said["au"]),
        depth=whole(said["d"], _DEEPEST),
        priority=whole(said["p"], 8),
        deadline_ms=None if deadline is None else whole(deadline),
        ceilings=_limits(said.get("c", [])),
        local=_limits(said.get("l", [])),
        shared=tuple(_shared(each) for each in _listed(said.get("sh", []), _MOST_SCOPES)),
        loan=_loan(said["lo"]) if "lo" in said else None,
        slots=_slots(said["sl"]) if "sl" in said else None,
        tags=_tags(said.get("g", {})),
        **names,
    )


def _said_of(shared: SharedScope) -> list[Any]:
    return [shared.kind.value, shared.id, shared.name, shared.tenant_id, [[write_limit(limit), epoch] for limit, epoch in shared.limits]]


def _limits(given: object) -> tuple[Limit, ...]:
    """Read limits of the very run that goes on: none of another scope, none that renews, and none that no run can have."""
    limits = tuple(read_limit(each) for each in _listed(given, _MOST_LIMITS))
    if any(each.scope or each.scope_name or each.per or each.by or (each.kind == Kind.AGENTS and each.value < 1) for each in limits):
        raise MalformedError("limit")
    return limits


def _shared(given: object) -> SharedScope:
    kind, own_id, name, tenant_id, limits = _listed(given, 5)
    scope = ScopeKind(kind)
    if scope not in _SHARED_KINDS:
        raise MalformedError("scope")
    pairs = [_listed(each, 2) for each in _listed(limits, _MOST_LIMITS)]
    known = tuple((read_limit(one), optional_text(epoch)) for one, epoch in pairs)
    if any(one.scope not in (None, scope) or one.kind == Kind.AGENTS for one, _ in known):
        raise MalformedError("limit")
    return SharedScope(scope, text(own_id), optional_text(name), optional_text(tenant_id), known)


def _slots(given: object) -> Slots:
    run_scope_id, most = _listed(given, 2)
    if whole(most, MAX_COUNT) < 1:
        raise MalformedError("slots")
    return Slots(text(run_scope_id), most)


def _tags(given: object) -> dict[str, str]:
    found = cast("dict[str, object]", given)
    if type(given) is not dict or len(found) > _MOST_TAGS:
        raise MalformedError("tags")
    return check_tags("tags", {text(name): text(value) for name, value in found.items()})


def _loan(given: object) -> Loan:
    own_id, lent, strict, held = _listed(given, 4)
    found = amounts(lent, LENT)
    if not found:
        raise MalformedError("loan")
    return Loan(_id(own_id), found, whole(strict, 1) == 1, _counters(held))


def counter_name(key: str) -> str:
    """Give a short name for a counter, the same in every process."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


def _counters(given: object) -> tuple[str, ...]:
    return tuple(_id(each) for each in _listed(given, _MOST_LIMITS))


def _id(given: object) -> str:
    if _HEX.fullmatch(text(given)) is None:
        raise MalformedError("id")
    return text(given)


def _listed(given: object, most: int) -> list[Any]:
    found = cast("list[Any]", given)
    if type(given) is not list or len(found) > most:
        raise MalformedError("list")
    return found


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decoded(given: str) -> bytes:
    return base64.b64decode(given + "=" * (-len(given) % 4), altchars=b"-_", validate=True)
