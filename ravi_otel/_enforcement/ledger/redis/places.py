"""Say where in Redis an account is kept, and what a script is told of it."""

from __future__ import annotations

import re
import secrets
import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from ravi_otel._enforcement.ledger.account import Account, kept_back
from ravi_otel._enforcement.ledger.contract import Line, Reservation
from ravi_otel._enforcement.ledger.losses import KEEP_S, kept_s
from ravi_otel._enforcement.ledger.windows import width_ns
from ravi_otel.policy.limits import ScopeKind

TOP: Final = 1 << 53
"""The most a script counts with, since its numbers are doubles; what is beyond is kept as this: tighter, never looser."""

_OBSERVE, _DRAINABLE, _SHARED, _TENTH, _ONE, _FREE, _CARVED, _CLAIMED = 8, 16, 32, 64, 128, 256, 512, 1024
_SHARED_SCOPES: Final = frozenset({ScopeKind.SESSION, ScopeKind.TENANT})
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.-]{1,40}")
_CHUNK_BITS: Final = 13


def tag_of(namespace: str, tenant: str | None) -> str:
    """Name what is kept together, in one slot of a Cluster: a namespace, and a tenant in it."""
    return f"{{ravi:{_plain(namespace)}}}" if tenant is None else f"{{ravi:{_plain(namespace)}:{_plain(tenant)}}}"


def tag_in(key: str) -> str:
    """Give the hash tag of a key, braces and all."""
    return key[: key.index("}") + 1]


def _plain(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else f"~{digest(name)}"


def digest(text: str) -> str:
    """Shorten a text to 24 characters that are no other's."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def bounded(amount: int) -> int:
    """Give an amount that a script can count with."""
    return amount if 0 <= amount <= TOP else TOP if amount > 0 else 0


class Place:
    """Know where an account is kept, and who of this process stands in line for it."""

    __slots__ = ("__weakref__", "key", "line", "tag")

    def __init__(self, tag: str, key: str) -> None:
        self.tag = tag
        self.key = key
        self.line: list[object] = []


class Sight:
    """Know what of a place one account object was shown last: `life` is the ledger's, `used` and `revision` are the store's.

    `seen_ns` is when that was, by the machine's monotonic clock, `kept_s` for how long the store keeps what nobody uses.
    """

    __slots__ = ("facts", "kept_s", "known", "life", "place", "revision", "seen_ns", "used", "warn")

    def __init__(self, life: object, place: Place | None, account: Account, *, keep_s: float = KEEP_S, now_ns: int = 0) -> None:
        self.life = life
        self.seen_ns = now_ns
        self.kept_s = kept_s(account, keep_s)
        self.place = place
        self.used = account.used
        self.revision = 0
        self.known = False
        final = kept_back(account.limit, 1_000)
        keeps = 0 if not final else _ONE if final == 1 else _TENTH
        shared = _SHARED if account.facts.kind in _SHARED_SCOPES else 0
        self.facts = int(account.nature) + (_OBSERVE if account.observe else 0) + shared + keeps
        self.warn = repr(float(account.warn_at))

    def birth(self, account: Account) -> str:
        """Say how the account begins if the store has never seen it; empty once it was seen.

        Of one that was declared again, with less than at first, it says with how little: the store may not have heard of that yet.
        """
        value = account.value
        if self.known:
            if account.declared >= account.limit.value:
                return ""
            value = account.declared
        epoch, width = f"e{secrets.token_hex(6)}", 0
        if account.roll_ns:
            epoch, width = f"r{epoch[1:]}", width_ns(account.roll_ns)  # a script tells by the epoch that the window rolls
        return f"{epoch} {bounded(value)} {bounded(account.used)} {self.kept_s} {width} {account.key}"


def facts_of(sight: Sight, account: Account, line: Line | None = None) -> int:
    """Give what a script must know of an account to judge it, in one number."""
    facts = sight.facts
    if account.drainable:
        facts += _DRAINABLE
    if line is not None:
        if line.free:
            facts += _FREE
        if line.carved:
            facts += _CARVED
    return facts + _CLAIMED if account.claims else facts


def asked(sight: Sight, line: Line, request: Reservation) -> str:
    """Say what one line asks of its account; what was used by the program's own hand goes along, once."""
    account = line.account
    facts, want, minimum = facts_of(sight, account, line), bounded(line.want), bounded(line.minimum)
    by_hand = account.used - sight.used if sight.known else 0
    if not by_hand and not account.claims:
        return f"{facts} {want} {minimum} {sight.warn}"
    if by_hand:
        sight.used = account.used
    asking = request.meters or {each.account for each in request.lines}
    others, mine = bounded(account.promised(but=asking)), bounded(account.promised(to=asking))
    return f"{facts} {want} {minimum} {sight.warn} {others} {mine} {bounded(by_hand)}"


_HEAD: Final = struct.Struct("<B13sdddddIHBH")
_unpack: Final = _HEAD.unpack_from
_HEAD_BYTES: Final = _HEAD.size
_FORMAT: Final = 2
_N: Final = ord("n")
_NEAR, _EXCEEDED, _DRAINING = 1, 2, 4


class State(NamedTuple):
    """Be what the store keeps of an account, in the order of account.lua; `events` has a letter for each."""

    format: int
    epoch: str
    value: int
    used: int
    held: int
    denied: int
    revision: int
    last_s: int
    waiting: int
    flags: int
    events: str


def read_state(said: bytes) -> State:
    """Read a state as it is kept; ValueError where that cannot be."""
    try:
        found, epoch, *amounts, last_s, waiting, flags, told = _unpack(said)
        value, used, held, denied, revision = (int(amount) for amount in amounts)
    except (struct.error, TypeError, OverflowError) as error:
        raise ValueError(str(error)) from None
    if found != _FORMAT:
        raise ValueError(f"its format is {found}")
    events = said[_HEAD_BYTES : _HEAD_BYTES + told].decode("ascii")
    return State(found, epoch.decode("ascii"), value, used, held, denied, revision, last_s, waiting, flags, events)


def show(account: Account, sight: Sight, said: bytes, at: int) -> int:
    """Write the state that begins at `at` into an account, unless it was shown something newer; under the ledger's lock.

    Gives where it ends; ValueError, struct.error or OverflowError where it cannot be read. It is read here once more, since this is done
    for each account of each call.
    """
    found, said_epoch, said_value, said_used, said_held, denied, revision, _, _, flags, told = _unpack(said, at)
    begins = at + _HEAD_BYTES
    ends: int = begins + told
    if found != _FORMAT or ends > len(said):
        raise ValueError
    epoch = said_epoch.decode("ascii")
    if sight.known and revision < sight.revision and epoch == account.epoch:
        return ends
    value, used = int(said_value), int(said_used)
    by_hand = account.used - sight.used if sight.known else 0
    if account.epoch != epoch:
        account.epoch = epoch
    sight.known, sight.revision, sight.used = True, int(revision), used
    account.used = used + by_hand if by_hand > 0 else used
    account.held = int(said_held)
    account.denied = int(denied)
    if value != account.value and not (value == TOP <= account.value):
        account.revalue(value)
    near, exceeded, draining = flags & _NEAR != 0, flags & _EXCEEDED != 0, flags & _DRAINING != 0
    if near is not account.near or exceeded is not account.exceeded or draining is not account.draining:
        account.flag(near=near, exceeded=exceeded, draining=draining)
    if told != len(account.events):
        account.events = tuple("limit_nearing" if one == _N else "limit_exceeded" for one in said[begins:ends])
    return ends


Twin = tuple[Account, Sight, Account, Sight]
"""An account that was not asked itself, and the one of the same place that was asked for it, each with what it was shown."""


def show_twins(twins: Sequence[Twin]) -> None:
    """Show in accounts what became of others of the same place; under the ledger's lock."""
    for twin, sight, account, seen in twins:
        if seen.known:
            sight.known, sight.revision, sight.used, sight.seen_ns = True, seen.revision, account.used, seen.seen_ns
            twin.epoch, twin.used, twin.held, twin.denied = account.epoch, account.used, account.held, account.denied
            twin.events = account.events
            if twin.value != account.value:
                twin.revalue(account.value)
            twin.flag(near=account.near, exceeded=account.exceeded, draining=account.draining)


class Graves:
    """Name operations and their tombstones: those of this ledger's process by number, a bit each; any other by a key of its own."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._own = secrets.token_hex(6)

    def of(self, op_id: str, tag: str) -> tuple[str, str, str]:
        """Give the operation's name among the operations of its lease, its tombstone, and its bit there ('' without)."""
        if op_id.startswith(self._prefix):
            number = op_id[len(self._prefix) :]
            if number.isascii() and number.isdigit() and len(number) < 16:  # noqa: PLR2004 - what a double counts exactly
                at = int(number)
                return number, f"{tag}:b:{self._own}:{at >> _CHUNK_BITS}", str(at & ((1 << _CHUNK_BITS) - 1))
        name = digest(op_id)
        return f"~{name}", f"{tag}:t:{name}", ""
