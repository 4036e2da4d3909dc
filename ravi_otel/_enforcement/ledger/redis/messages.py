"""Encode requests for the scripts of `lua/`, and decode their answers.

A message is a head, which describes the request, and one word for each account: its epoch, its facts and its warning level, then what is
asked of it. `Reply` checks the answer: anything that no script of ours writes is a StoreError.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from importlib import resources
from typing import Any, Final, Literal, NamedTuple, cast

from ravi_otel._enforcement.ledger.account import Account, Crossing, amount_kept_back, width_ns
from ravi_otel._enforcement.ledger.judge import Line, Operation, Reservation, asked_once
from ravi_otel._enforcement.ledger.operators import Counter
from ravi_otel._enforcement.ledger.store_failures import KEEP_S, StoreError
from ravi_otel.hooks._events import Phase
from ravi_otel.policy._limits import ScopeKind

# -- the scripts ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Script:
    """One Lua script, which the server keeps by its hash."""

    name: str
    source: bytes
    sha: str

    @classmethod
    def of(cls, name: str, source: bytes) -> Script:
        """Return the script of a text."""
        return cls(name, source, hashlib.sha1(source, usedforsecurity=False).hexdigest())


_NEEDS: Final = {
    "reserve": ("account", "record"),
    "settle": ("account", "record", "operation"),
    "release": ("account", "record", "operation"),
    "extend": ("account", "record"),
    "retune": ("account",),
    "leave": ("account",),
    "reap": ("account", "record"),
    "operate": ("account",),
    "list": (),
    "beat": (),
    "look": ("account",),
    "accept": (),
}
_CONSTANTS: Final = re.compile(r"^local ([A-Z_]+(?:, [A-Z_]+)*) = (\d+(?:, \d+)*)$", re.MULTILINE)


def _read(name: str) -> Script:
    folder = resources.files("ravi_otel._enforcement.ledger.redis").joinpath("lua")
    source = "\n".join(folder.joinpath(f"{part}.lua").read_text("ascii") for part in (*_NEEDS[name], name))
    return Script.of(name, _with_numbers(source).encode("ascii"))


def _with_numbers(source: str) -> str:
    """Put numbers where constants stand: Lua would look each of them up, and carry it into each function that knows it."""
    numbers: dict[str, str] = {}
    for names, values in _CONSTANTS.findall(source):
        numbers.update(zip(names.split(", "), values.split(", "), strict=True))
    return re.sub(r"(?<!')\b[A-Z][A-Z_]*\b(?!')", lambda word: numbers.get(word[0], word[0]), _CONSTANTS.sub("", source))


SCRIPTS: Final[Mapping[str, Script]] = {name: _read(name) for name in _NEEDS}
"""The scripts of `lua/`, each with what it needs before it."""


# -- where an account is kept -----------------------------------------------------------------------------------------

TOP: Final = 1 << 53
"""The most a script counts with, since its numbers are doubles; what is beyond is kept as this: tighter, never looser."""

_OBSERVE, _DRAINABLE, _SHARED, _TENTH, _ONE, _FREE, _CARVED, _CLAIMED = 8, 16, 32, 64, 128, 256, 512, 1024
_SHARED_SCOPES: Final = frozenset({ScopeKind.SESSION, ScopeKind.TENANT})
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.-]{1,40}")
_CHUNK_BITS: Final = 13


def tag_of(namespace: str, tenant: str | None) -> str:
    """Return the hash tag of what is kept together, in one slot of a Cluster: a namespace, and a tenant in it."""
    return f"{{ravi:{_plain(namespace)}}}" if tenant is None else f"{{ravi:{_plain(namespace)}:{_plain(tenant)}}}"


def _plain(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else f"~{digest(name)}"


def digest(text: str) -> str:
    """Shorten a text to 24 characters that are no other's."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def bounded(amount: int) -> int:
    """Return an amount that a script can count with."""
    return amount if 0 <= amount <= TOP else TOP if amount > 0 else 0


class Queue(list[object]):
    """Those of this process who wait for one counter, through whichever of its account objects."""

    __slots__ = ("__weakref__",)


class AccountView:
    """Where the store keeps an account, and what of it was last written into one account object: `used` and `revision` are the store's.

    `life` identifies the store since it was opened or forked. `seen_ns` is when the state was written, by the machine's monotonic clock;
    `kept_s` is for how long the store keeps a counter that nobody uses. `known` says that the store has the account.
    """

    __slots__ = ("_facts", "_warn", "kept_s", "key", "known", "life", "revision", "seen_ns", "tag", "used")

    def __init__(self, life: object, tag: str, key: str, account: Account, *, keep_s: float = KEEP_S, now_ns: int = 0) -> None:
        self.life = life
        self.tag = tag
        self.key = key
        self.seen_ns = now_ns
        self.kept_s = account.kept_s(keep_s)
        self.used = account.used
        self.revision = 0
        self.known = False
        final = amount_kept_back(account.limit, 1_000)
        keeps = 0 if not final else _ONE if final == 1 else _TENTH
        shared = _SHARED if account.facts.kind in _SHARED_SCOPES else 0
        self._facts = int(account.nature) + (_OBSERVE if account.observe else 0) + shared + keeps
        self._warn = repr(float(account.warn_at))

    def encode_head(self, account: Account, line: Line | None = None) -> str:
        """Return what a script must know of an account to judge it, the head of its word."""
        facts = self._facts
        if account.drainable:
            facts += _DRAINABLE
        if line is not None:
            if line.free:
                facts += _FREE
            if line.carved:
                facts += _CARVED
        if account.claims:
            facts += _CLAIMED
        return f"{account.epoch or '-'} {facts} {self._warn}"

    def encode_line(self, line: Line, request: Reservation) -> str:
        """Return the word of one line: what it asks of its account, and what the program has written into the account by hand.

        What was written by hand is sent once: the view notes it as sent.
        """
        account = line.account
        said = f"{self.encode_head(account, line)} {bounded(line.want)} {bounded(line.minimum)}"
        by_hand = account.used - self.used if self.known else 0
        if by_hand or account.claims:
            others, mine = bounded(account.promised(but=request.meters)), bounded(account.promised(to=request.meters))
            said = f"{said} {others} {mine} {bounded(by_hand)}"
        if by_hand:
            self.used = account.used
        return said + self.encode_birth(account)

    def encode_birth(self, account: Account) -> str:
        """Return how the account begins in a store that has never seen it; nothing once it was seen.

        An account that was declared again with less than at first carries that value: the store may not have it yet.
        """
        value = account.value
        if self.known:
            if account.declared >= account.limit.value:
                return ""
            value = account.declared
        epoch, width = f"e{secrets.token_hex(6)}", 0
        if account.roll_ns:
            epoch, width = f"r{epoch[1:]}", width_ns(account.roll_ns)  # a script tells by the epoch that the window rolls
        return f"\n{epoch} {bounded(value)} {bounded(account.used)} {self.kept_s} {width} {account.key}"


# -- what a request asks ----------------------------------------------------------------------------------------------

NEWCOMER, PATIENT, SPENT, WRAPS_UP, SURE, SLOT, STAND, LAST, OBSERVED = 1, 2, 4, 8, 16, 32, 128, 256, 512


class ProcessLease:
    """One lease of this process on one hash tag, which holds what it reserved there as long as it lives; `made` once the store has it.

    `reaped_ns` is when those who are silent on the tag were looked for.
    """

    __slots__ = ("made", "name", "operations", "reaped_ns", "seen_ns", "tag")

    def __init__(self, tag: str, now_ns: int) -> None:
        self.tag = tag
        self.name = secrets.token_hex(8)
        self.operations = f"{tag}:o:{self.name}"
        self.made = False
        self.seen_ns = now_ns
        self.reaped_ns: int | None = None


class Name(NamedTuple):
    """The name of an operation among those of its lease, its tombstone, and its bit there ("-": the tombstone is its own)."""

    name: str
    tombstone: str
    bit: str


class Names:
    """Names for operations and their tombstones: those of this ledger's process by number, a bit each; any other by a key of its own."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._own = secrets.token_hex(6)

    def of(self, op_id: str, tag: str) -> Name:
        """Return how an operation is named."""
        number = op_id.removeprefix(self._prefix)
        if number is not op_id and number.isascii() and number.isdigit() and len(number) < 16:  # noqa: PLR2004 - what a double counts exactly
            at = int(number)
            return Name(number, f"{tag}:b:{self._own}:{at >> _CHUNK_BITS}", str(at & ((1 << _CHUNK_BITS) - 1)))
        name = digest(op_id)
        return Name(f"~{name}", f"{tag}:t:{name}", "-")


class EncodedRequest:
    """One reservation as the scripts take it: its lines, each account once, where these are kept, and the mode it is judged in.

    `seen` are its accounts with their views. `twins` are further account objects of the same counters, which are not asked, each with the
    number of the one that is. `lease` is what it is held under from when it is sent; `words` are what was sent. `doubtful` is set where it
    may have come to the store, and no answer came; `ticket` is the id of one that stands in line for it there, with the line's key.
    """

    __slots__ = ("doubtful", "lease", "lines", "mode", "named", "request", "seen", "ticket", "twins", "words")

    def __init__(self, request: Reservation, view_of: Callable[[Account], AccountView], names: Names) -> None:
        self.request = request
        self.lines: Sequence[Line] = request.lines
        self.seen = [(line.account, view_of(line.account)) for line in self.lines]
        self.twins: list[tuple[int, Account, AccountView]] = []
        if len({view.key for _, view in self.seen}) != len(self.seen):
            self._merge()
        self.named = names.of(request.op_id, self.tag)
        self.lease: ProcessLease | None = None
        self.words: list[str] = []
        self.doubtful = False
        self.ticket: tuple[str, str] | None = None
        self.mode = (
            (PATIENT if request.patience_s > 0 else 0)
            + (SPENT if request.spent else 0)
            + (WRAPS_UP if request.wraps_up else 0)
            + (SURE if request.sure else 0)
            + (SLOT if request.slot else 0)
        )

    def _merge(self) -> None:
        """Ask once for a limit that was declared twice, that is, for several accounts of one place: the strictest of them for all.

        The store hears of the smallest value that it was not told of yet.
        """
        found: dict[str, list[tuple[Line, AccountView]]] = {}
        for line, (_, view) in zip(self.lines, self.seen, strict=True):
            found.setdefault(view.key, []).append((line, view))
        lines, self.seen = list[Line](), list[tuple[Account, AccountView]]()
        for at, each in enumerate(found.values()):
            first, view = min(each, key=lambda one: one[0].account.rank)
            account = first.account
            least = min((line.account.value for line, other in each if not other.known), default=account.value)
            if least < account.value:
                account.revalue(least)
                view.known = False
            lines.append(asked_once([line for line, _ in each], account))
            self.seen.append((account, view))
            self.twins += [(at, line.account, other) for line, other in each if other is not view]
        self.lines, self.request = lines, replace(self.request, lines=lines)

    @property
    def tag(self) -> str:
        """Return what its accounts are kept together under."""
        return self.seen[-1][1].tag

    @property
    def accounts(self) -> list[Account]:
        """Return the accounts of the lines."""
        return [account for account, _ in self.seen]

    @property
    def keys(self) -> list[str]:
        """Return the keys of what begins or ends it: the operations of its lease, its tombstone, its accounts."""
        assert self.lease is not None
        return [self.lease.operations, self.named.tombstone, *(view.key for _, view in self.seen)]

    def write_words(self) -> None:
        """Write down what each line asks."""
        self.words = [view.encode_line(line, self.request) for line, (_, view) in zip(self.lines, self.seen, strict=True)]


class StoredOperation(Operation):
    """An operation that holds something in the store; `forgotten` says that a counter of it has begun anew since."""

    __slots__ = ("encoded", "extended", "forgotten")

    observed: Account | None

    def __init__(self, encoded: EncodedRequest, held: list[int] | None, observed: int) -> None:
        super().__init__(encoded.request, held)
        self.encoded = encoded
        self.extended = 0
        self.forgotten = False
        self.taken = len(self.lines)
        self.observe(observed)

    def observe(self, at: int) -> None:
        """Note which account would have refused it (from 1; 0: none)."""
        if at and self.observed is None:
            self.observed = self.lines[at - 1].account


# -- what a script answers --------------------------------------------------------------------------------------------

Event = Literal["limit_nearing", "limit_exceeded"]
STRANGE: Final = "because it answers what no script of ours says"
UNREADABLE: Final = "because what it says of an account cannot be read: it is spoilt, or of another version"
_NUMBER: Final = rb"\d{1,20}"
_HEAD: Final = re.compile(
    rb"([GDOLUNSEX])(?: (%b))?(?: (exhausted|too_large|draining|contended))?(?: (%b(?:,%b)*))?" % (_NUMBER, _NUMBER, _NUMBER)
)
_CROSSING: Final = re.compile(rb"([1-9]\d{0,5})([nx]) (%b) (%b)" % (_NUMBER, _NUMBER))
_EVENTS: Final[Mapping[bytes, Event]] = {b"n": "limit_nearing", b"x": "limit_exceeded"}
_LARGEST: Final = 1 << 63
_NOT_OURS: Final = "because it holds what no process of ours writes"

_STATE: Final = struct.Struct("<B13sdddddIHBH")
_unpack: Final = _STATE.unpack_from
_STATE_BYTES: Final = _STATE.size
_FORMAT: Final = 2
_N: Final = ord("n")
_NEAR, _EXCEEDED, _DRAINING = 1, 2, 4
_UNREADABLE_STATES: Final = (ValueError, IndexError, OverflowError, struct.error)


class Reply:
    """A script's answer: its letter, the account it is about (from 1; 0: none), why, amounts, what was crossed, and the states of accounts.

    The script that was asked answers with one of `letters`; L and U, that an account is lost or unreadable, are errors unless they are
    among these. StoreError for all else.
    """

    __slots__ = ("_crossed", "_seen", "_states", "amounts", "at", "letter", "reason")

    def __init__(self, raw: object, letters: str, seen: Sequence[tuple[Account, AccountView]]) -> None:
        if not isinstance(raw, bytes):
            raise StoreError(STRANGE)
        head, _, rest = raw.partition(b";")
        crossed, _, self._states = rest.partition(b";")
        found = _HEAD.fullmatch(head)
        crossings = [_CROSSING.fullmatch(one) for one in crossed.split(b",")] if crossed else []
        if found is None or not all(crossings):
            raise StoreError(STRANGE)
        letter, at, reason, amounts = found.groups()
        self.letter, self.at, self.reason = letter.decode(), int(at or 0), reason.decode() if reason else ""
        self.amounts = [int(one) for one in amounts.split(b",")] if amounts else []
        self._seen = seen
        named = self.letter not in "LUDX" or (self.at and (self.letter in "LU" or self.reason))
        if self.at > len(seen) or not named:
            raise StoreError(STRANGE)
        self._crossed: list[tuple[Account, Event, int, int]]
        try:
            self._crossed = [(seen[int(one[1]) - 1][0], _EVENTS[one[2]], int(one[3]), int(one[4])) for one in crossings if one]
        except IndexError:
            raise StoreError(STRANGE) from None
        if self.letter not in letters:
            raise {"L": lost(), "U": StoreError(UNREADABLE)}.get(self.letter, StoreError(STRANGE))

    def expect(self, count: int) -> list[int]:
        """Return the amounts, which are so many; StoreError where they are not."""
        if len(self.amounts) != count:
            raise StoreError(STRANGE)
        return self.amounts

    def show(self, now_ns: int = 0, twins: Sequence[tuple[int, Account, AccountView]] = ()) -> bool:
        """Write the states into the accounts and their twins, as they were seen at `now_ns`; under the store's lock.

        Return whether there is one of each.
        """
        said, at, begins, complete = self._states, 0, list[int](), True
        try:
            for account, view in self._seen:
                begins.append(at)
                complete = complete and said[at] != 0
                at = _show_state(account, view, said, at)
                view.seen_ns = now_ns or view.seen_ns
            for number, account, view in twins:
                _show_state(account, view, said, begins[number])
                view.seen_ns = now_ns or view.seen_ns
        except _UNREADABLE_STATES:
            raise StoreError(UNREADABLE) from None
        if at != len(said):
            raise StoreError(UNREADABLE)
        return complete

    def crossings(self, phase: Phase, decision: str = "admitted") -> Sequence[Crossing]:
        """Return what was crossed, and what was decided there: of an account that only observes always that."""
        return tuple(
            Crossing(account, event, phase, "observed" if account.observe else decision, used, held)
            for account, event, used, held in self._crossed
        )


def lost() -> StoreError:
    """Return the error of a store that has forgotten what was counted in it."""
    return StoreError.of_lost_counter("because what was counted in it is gone")


def show_state(account: Account, view: AccountView, said: bytes) -> None:
    """Write one state into an account that nobody else sees yet; StoreError where it cannot be read."""
    try:
        _show_state(account, view, said, 0)
    except _UNREADABLE_STATES:
        raise StoreError(UNREADABLE) from None


def _show_state(account: Account, view: AccountView, said: bytes, at: int) -> int:
    """Write the state that begins at `at`, a zero where there is none, into an account, unless it was shown something newer.

    Return where it ends; one of `_UNREADABLE_STATES` is raised where it cannot be read.
    """
    if not said[at]:
        return at + 1
    found, said_epoch, said_value, said_used, said_held, denied, revision, _, _, flags, told = _unpack(said, at)
    begins = at + _STATE_BYTES
    ends: int = begins + told
    if found != _FORMAT or ends > len(said):
        raise ValueError
    epoch = said_epoch.decode("ascii")
    if view.known and revision < view.revision and epoch == account.epoch:
        return ends
    value, used = int(said_value), int(said_used)
    by_hand = account.used - view.used if view.known else 0
    if account.epoch != epoch:
        account.epoch = epoch
    view.known, view.revision, view.used = True, int(revision), used
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


def listed(found: object, count: int, kind: type = object) -> list[Any]:
    """Return a list of so many things of one kind that a script answers, or raise StoreError; no number of it is below zero."""
    if isinstance(found, list):
        things = cast("list[object]", found)
        if len(things) == count and all(isinstance(one, kind) and (kind is not int or 0 <= cast("int", one) < _LARGEST) for one in things):
            return things
    raise StoreError(STRANGE)


def page_of(answer: object) -> tuple[str, int, list[tuple[Counter, int]]]:
    """Return the next cursor of a listing, how many processes are seen, and counters, each with how many stand in line for it."""
    try:
        cursor, processes, rows = cast("Sequence[Any]", answer)
        if not isinstance(rows, list):
            raise TypeError  # noqa: TRY301 - as anything else that is wrong with it
        return cursor.decode(), max(0, processes), [counter_of(*row) for row in cast("list[Sequence[Any]]", rows)]
    except (*_UNREADABLE_STATES, TypeError, AttributeError):
        raise StoreError(_NOT_OURS) from None


def counter_of(at: bytes, key: bytes, said: bytes, declared: bytes) -> tuple[Counter, int]:
    """Return a counter as operators are shown it, and how many stand in line for it."""
    try:
        form, epoch, value, used, held, denied, _, last_s, waiting, flags, _ = _unpack(said)
        if form != _FORMAT:
            raise ValueError
        counter = Counter(
            at.decode(),
            key.decode("utf-8", "surrogatepass"),
            int(value),
            int(used),
            int(held),
            int(denied),
            near=flags & _NEAR != 0,
            exceeded=flags & _EXCEEDED != 0,
            draining=flags & _DRAINING != 0,
            declared=int(declared) if re.fullmatch(_NUMBER, declared) else None,
            used_s=float(last_s),
            epoch=epoch.decode("ascii"),
        )
    except (*_UNREADABLE_STATES, TypeError, AttributeError):
        raise StoreError(_NOT_OURS) from None
    return counter, waiting
