"""The signed token that carries a run, and the entry of the `baggage` header (W3C) that it travels in.

A token is `VERSION.KEY.PAYLOAD.SIGNATURE`, each part in URL-safe base64, so that it fits a baggage value and a header as it is. A token
without a signature has no key, and is for whoever trusts the peer it comes from.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import Enum
from json import dumps, loads  # as they are now: the program may make tools of that module's functions
from typing import Any, Final, NamedTuple, cast
from urllib.parse import unquote_plus

from ravi_otel._enforcement.ledger.account import Nature, nature_of
from ravi_otel._telemetry import names
from ravi_otel.carrier._configuration import Keys
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._checks import MAX_COUNT, MAX_NAME
from ravi_otel.policy._limits import SPENDS, Kind, Limit, ScopeKind, option_of

KEY: Final = names.CARRIED_ENTRY
"""The key of our one entry."""

PREFIX: Final = "ravi."
"""The prefix of every entry of ours; none goes to a host that is not listed."""

MOST_BYTES: Final = 8_192
"""The most bytes of the whole header: many readers drop all of a longer one."""

MOST_ENTRIES: Final = 180
MOST_ENTRY_BYTES: Final = 4_096
"""The most bytes of one entry: OpenTelemetry drops a longer one."""


def is_ours(entry: str) -> bool:
    """Whether an entry is ours, also one whose key has another case or percent signs, which readers undo."""
    key = entry.partition("=")[0].strip()
    if "%" in key or "+" in key:
        key = unquote_plus(key).strip()
    return key.lower().startswith(PREFIX)


def without_ours(existing: str | None) -> str | None:
    """Return a header without our entries, and without properties of others' entries that are called like ours.

    Return None where nothing is left, and the very same text where there is nothing of ours.
    """
    if not existing:
        return existing
    entries = existing.split(",")
    kept = [entry if ";" not in entry else _bare(entry) for entry in entries if not is_ours(entry)]
    if kept == entries:
        return existing
    return ",".join(kept).strip() or None


def _bare(entry: str) -> str:
    value, *properties = entry.split(";")
    return ";".join((value, *(each for each in properties if not is_ours(each))))


def with_ours(existing: str | None, token: str) -> str | None:
    """Return a header with our entry in place of any before; where that would be too long, others' entries stay and ours does not."""
    others = without_ours(existing)
    entry = f"{KEY}={token}"
    if len(entry) > MOST_ENTRY_BYTES:
        return others
    if not others:
        return entry
    whole = f"{others},{entry}"
    if len(whole.encode("utf-8", "surrogatepass")) > MOST_BYTES or whole.count(",") >= MOST_ENTRIES:
        return others
    return whole


def tokens_of(header: str) -> list[str]:
    """Return the tokens in a header, without their properties; there should be one at most."""
    found: list[str] = []
    for entry in header.split(","):
        key, equals, value = entry.partition("=")
        if equals and is_ours(entry) and unquote_plus(key).strip().lower() == KEY:
            found.append(value.partition(";")[0].strip())
    return found


_SHORT: Final[Mapping[str, str]] = {
    "kind": "k",
    "value": "v",
    "detail": "d",
    "scope": "s",
    "scope_name": "n",
    "agent": "a",
    "per": "p",
    "tz": "z",
    "warn_at": "w",
    "on_exceed": "x",
    "admission": "m",
    "on_unpriced": "u",
    "on_unbounded": "b",
    "on_store_failure": "f",
    "suspend": "y",
    "count": "c",
    "by": "e",
}
_LONG: Final = {short: name for name, short in _SHORT.items()}
_DEFAULTS: Final[Mapping[str, Any]] = {each.name: None if each.default is MISSING else each.default for each in fields(Limit)}
_NAMED: Final = frozenset({"kind", "detail", "scope_name", "agent"})
MOST_KINDS: Final = 64


class MalformedError(ValueError):
    """What was sent cannot be read; it stays inside of this package."""


def write_limit(limit: Limit) -> dict[str, Any]:
    """Return the fields of a limit that differ from their defaults, under short names."""
    written: dict[str, Any] = {}
    for name, default in _DEFAULTS.items():
        value = getattr(limit, name)
        if value != default or name in {"kind", "value"}:
            written[_SHORT.get(name, name)] = value.value if isinstance(value, Enum) else value
    return written


def read_limit(given: object) -> Limit:
    """Return the limit that was written; raise MalformedError for anything else."""
    if type(given) is not dict:
        raise MalformedError("limit")
    written = cast("dict[str, Any]", given)
    found: dict[str, Any] = {}
    for short, value in written.items():
        name = _LONG.get(short, short)
        if name not in _DEFAULTS:
            continue  # a field of a later version that loosens nothing
        if value is None:
            raise MalformedError("limit")
        found[name] = _checked(name, value)
    try:
        return Limit(**found)
    except (ConfigurationError, TypeError) as error:
        raise MalformedError("limit") from error


def _checked(name: str, value: object) -> Any:
    try:
        if name == "value":
            return whole(value)
        return checks.name(name, value) if name in _NAMED else option_of(name).read(value)
    except ConfigurationError as error:
        raise MalformedError(name) from error


def whole(value: object, most: int = checks.MAX_NANO) -> int:
    """Return a whole number from 0 to `most`; raise MalformedError for anything else."""
    if type(value) is not int or not 0 <= value <= most:
        raise MalformedError("number")
    return value


def text(value: object, most: int = checks.MAX_NAME) -> str:
    """Return a name of up to `most` characters; raise MalformedError for anything else."""
    if type(value) is not str or len(value) > most or checks.flaw_of_name(value) is not None:
        raise MalformedError("text")
    return value


def optional_text(value: object) -> str | None:
    """Return a name or None."""
    return None if value is None else text(value)


def amounts(value: object, known: frozenset[str] | None = None) -> dict[str, int]:
    """Return amounts by kind, in inner units; raise MalformedError for a kind that is not `known`, or too many."""
    given = cast("dict[str, Any]", value)
    if type(value) is not dict or len(given) > MOST_KINDS:
        raise MalformedError("amounts")
    found = {text(kind): whole(amount, most_of(kind)) for kind, amount in given.items()}
    if known is not None and not known.issuperset(found):
        raise MalformedError("amounts")
    return found


def most_of(kind: str) -> int:
    """Return the largest amount that a kind can have."""
    return checks.MAX_NANO if kind == Kind.COST or kind not in SPENDS else checks.MAX_COUNT


LONGEST: Final = 4_000
"""The most characters of a token; a longer one is neither written nor read."""

VERSION: Final = "2"
"""The version of the format. Readers skip fields that they do not know, so a field that only informs may be added.

A field without which a limit is looser, and any other change, needs the next number: older readers then believe nothing of it.
"""

SUMS: Final = frozenset({Nature.COUNTED, Nature.HELD, Nature.AFTER})
"""The limits of a sum, which can be lent."""

MODEL: Final = "model"
"""`Limit.by` of one that counts each model by itself."""

LONGEST_LOAN_S: Final = 86_400.0

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
    """An amount of one model, in a limit that counts each model by itself; of one agent alone, or of any (None)."""

    kind: str
    agent: str | None
    model: str
    amount: int


@dataclass(frozen=True, slots=True)
class Loan:
    """An allowance for one request under an id that is good once: `limits` of all sums that the lender is held to.

    `held` are the counters that hold it, by short names: a borrower that counts in the same store leaves them to the lender. `models` are
    models that have an amount of their own.
    """

    id: str
    limits: tuple[Limit, ...]
    held: tuple[str, ...] = ()
    models: tuple[ModelAmount, ...] = ()

    @property
    def amounts(self) -> Mapping[str, int]:
        """Return the amount of each kind, in inner units, for any agent and model."""
        return {each.counted: each.value for each in self.limits if each.agent is None and each.by is None}


@dataclass(frozen=True, slots=True)
class SharedScope:
    """A scope of the caller whose limits are counted in a store that both processes may have, each with its epoch there.

    The `tenant_id` is the scope's own: a run inside of another may have one where the outer run has none.
    """

    kind: ScopeKind
    id: str
    name: str | None
    tenant_id: str | None
    limits: Sequence[tuple[Limit, str | None]]


@dataclass(frozen=True, slots=True)
class Slots:
    """The agent slots of the caller's run, which a store counts: of which run, and how many in all."""

    run_scope_id: str
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """Who works for whom, and within which limits.

    `expires_ms` and `deadline_ms` are UTC, in ms since 1970. `ceilings` hold for all work that the token is for; where both processes count
    in the store `store`, those of `shared` scopes hold instead. `local` ceilings hold in either case: nobody else counts them. `models`
    say what is left of single models in limits among them that count by model.
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
    """What a borrower used, by kind and in inner units: of the loan, and of other kinds besides.

    `charged` are the counters of the lender's store, by short names, that those other kinds were charged to already. Work `inside` of the
    lender's own scope, in one process, is in that scope's usage already. `models` are amounts of one agent or one model; "" is any model.
    Where both count in the `same_store`, nothing has to be lent.
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
    """Return a token as text, signed where there is a key; None where it would be too long."""
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
        said["sh"] = [_scope_fields(each) for each in token.shared]
    if token.loan is not None:
        said["lo"] = [token.loan.id, [write_limit(limit) for limit in token.loan.limits], list(token.loan.held)]
    if token.models:
        said["m"] = [list(each) for each in token.models]
    return _seal(_CARRY, said, keys)


def read_token(given: str, keys: Keys, *, trusted: bool) -> Token:
    """Return the token that a known key signed, or that comes from a `trusted` peer; skip fields that are not known.

    Raise MalformedError, whose text is "forged", "unsigned", "malformed" or "version".
    """
    said = _open(_CARRY, given, keys, trusted=trusted)
    try:
        return _token(said)
    except (MalformedError, ConfigurationError, ValueError, TypeError, KeyError) as error:
        raise MalformedError("malformed") from error


def write_spent(spent: Spent, keys: Keys) -> str | None:
    """Return what was used of a loan as signed text; None without a key, or where it would be too long."""
    if not keys:
        return None
    said = {"i": spent.loan_id, "u": dict(spent.amounts), "c": list(spent.charged), "n": int(spent.inside), "s": int(spent.same_store)}
    return _seal(_RETURN, {**said, "m": [list(each) for each in spent.models]} if spent.models else said, keys)


def read_spent(given: str, keys: Keys) -> Spent:
    """Return what was used of a loan; raise MalformedError for what no known key signed."""
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


def _scope_fields(shared: SharedScope) -> list[Any]:
    return [shared.kind.value, shared.id, shared.name, shared.tenant_id, [[write_limit(limit), epoch] for limit, epoch in shared.limits]]


def _limits(given: object) -> tuple[Limit, ...]:
    """Return limits of the run that continues: none of another scope or a window, and none that a run cannot have."""
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
    """Return the name of a model, which may be any text that a program asked for; "" is any model."""
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
    """Return the first `count` fields of a list; later versions may add some behind them."""
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
