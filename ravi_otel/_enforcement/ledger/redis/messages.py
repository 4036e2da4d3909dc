"""Write what the Lua scripts are told, and read what they answer: keys, words and states, in one place with the scripts themselves."""

from __future__ import annotations

import hashlib
import re
import secrets
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from importlib import resources
from typing import Final, Literal, NamedTuple, cast

from ravi_otel._enforcement.ledger.account import Account, Nature, kept_back
from ravi_otel._enforcement.ledger.contract import Crossing, Line, Reservation, asked_once
from ravi_otel._enforcement.ledger.judge import Operation
from ravi_otel._enforcement.ledger.operators import Counter
from ravi_otel._enforcement.ledger.store_failures import KEEP_S, StoreError, kept_s
from ravi_otel._enforcement.ledger.windows import width_ns
from ravi_otel.hooks.records import Phase
from ravi_otel.policy.limits import ScopeKind

# -- the scripts ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Script:
    """Be one Lua script, which the server keeps by its hash."""

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
    "clock": ("account",),
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


RESERVE: Final = _read("reserve")
SETTLE: Final = _read("settle")
RELEASE: Final = _read("release")
EXTEND: Final = _read("extend")
RETUNE: Final = _read("retune")
CLOCK: Final = _read("clock")
LEAVE: Final = _read("leave")
REAP: Final = _read("reap")
BEAT: Final = _read("beat")
LOOK: Final = _read("look")
LIST: Final = _read("list")
OPERATE: Final = _read("operate")
ACCEPT: Final = _read("accept")


# -- where an account is kept -----------------------------------------------------------------------------------------

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

    def __init__(self, life: object, place: Place, account: Account, *, keep_s: float = KEEP_S, now_ns: int = 0) -> None:
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
    others, mine = bounded(account.promised(but=request.meters)), bounded(account.promised(to=request.meters))
    return f"{facts} {want} {minimum} {sight.warn} {others} {mine} {bounded(by_hand)}"


_STATE: Final = struct.Struct("<B13sdddddIHBH")
_unpack: Final = _STATE.unpack_from
_STATE_BYTES: Final = _STATE.size
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
    events = said[_STATE_BYTES : _STATE_BYTES + told].decode("ascii")
    return State(found, epoch.decode("ascii"), value, used, held, denied, revision, last_s, waiting, flags, events)


def _show_state(account: Account, sight: Sight, said: bytes, at: int) -> int:
    """Write the state that begins at `at` into an account, unless it was shown something newer; under the ledger's lock.

    Gives where it ends; ValueError, struct.error or OverflowError where it cannot be read. It is read here once more, since this is done
    for each account of each call.
    """
    found, said_epoch, said_value, said_used, said_held, denied, revision, _, _, flags, told = _unpack(said, at)
    begins = at + _STATE_BYTES
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


# -- what a request asks ----------------------------------------------------------------------------------------------

NEWCOMER, PATIENT, SPENT, WRAPS_UP, SURE, SLOT, STAND, LAST, OBSERVED = 1, 2, 4, 8, 16, 32, 128, 256, 512


class Ask:
    """Be one request in the order a script wants it: its lines, each account once, where they are kept, and what mode it is judged in."""

    __slots__ = ("lines", "mode", "request", "sights", "twins")

    def __init__(self, request: Reservation, sight_of: Callable[[Account], Sight]) -> None:
        self.request = request
        self.lines: Sequence[Line] = request.lines
        self.sights = [sight_of(line.account) for line in self.lines]
        self.twins: list[Twin] = []
        self._merge()
        self.mode = (
            (PATIENT if request.patience_s > 0 else 0)
            + (SPENT if request.spent else 0)
            + (WRAPS_UP if request.wraps_up else 0)
            + (SURE if request.sure else 0)
            + (SLOT if request.slot else 0)
        )

    def _merge(self) -> None:
        """Ask once for a limit that was declared twice: several accounts of one place."""
        if len({sight.place for sight in self.sights}) == len(self.sights):
            return
        found: dict[Place, list[tuple[Line, Sight]]] = {}
        for line, sight in zip(self.lines, self.sights, strict=True):
            found.setdefault(sight.place, []).append((line, sight))
        merged = [self._one_of(each) for each in found.values()]
        self.lines, self.sights = [line for line, _ in merged], [sight for _, sight in merged]
        self.request = replace(self.request, lines=self.lines)

    def _one_of(self, each: Sequence[tuple[Line, Sight]]) -> tuple[Line, Sight]:
        """Ask the strictest of them for all; the store hears of the smallest value that it was not told of yet."""
        first, sight = min(each, key=lambda one: one[0].account.rank)
        account = first.account
        least = min((line.account.value for line, other in each if not other.known), default=account.value)
        if least < account.value:
            account.revalue(least)
            sight.known = False
        self.twins += [(line.account, other, account, sight) for line, other in each if other is not sight]
        return asked_once([line for line, _ in each], account), sight

    @property
    def accounts(self) -> list[Account]:
        """Return the accounts of the lines."""
        return [line.account for line in self.lines]

    @property
    def seen(self) -> list[tuple[Account, Sight]]:
        """Return the accounts with what they were shown last."""
        return [(line.account, sight) for line, sight in zip(self.lines, self.sights, strict=True)]

    @property
    def places(self) -> list[Place]:
        """Return where they are kept."""
        return [sight.place for sight in self.sights]

    def words(self) -> list[str]:
        """Return what each line asks, in a script's words: epoch, facts, birth."""
        words: list[str] = []
        for line, sight in zip(self.lines, self.sights, strict=True):
            words += (line.account.epoch or "", asked(sight, line, self.request), sight.birth(line.account))
        return words


class Shared(Operation):
    """Remember an operation that holds something in the store, under `lease`."""

    __slots__ = ("bit", "extended", "lease", "name", "sights", "tombstone", "twins")

    observed: Account | None

    def __init__(self, ask: Ask, held: list[int], observed: Account | None) -> None:
        super().__init__(ask.request, held, observed)
        self.sights = ask.sights
        self.twins = ask.twins
        self.lease = self.name = self.tombstone = self.bit = ""
        self.extended = 0
        self.taken = len(self.lines)

    @property
    def accounts(self) -> list[Account]:
        """Return the accounts of the lines."""
        return [line.account for line in self.lines]

    @property
    def seen(self) -> list[tuple[Account, Sight]]:
        """Return the accounts with what they were shown last."""
        return [(line.account, sight) for line, sight in zip(self.lines, self.sights, strict=True)]

    @property
    def keys(self) -> list[str]:
        """Return the keys of what ends it: the operations of its lease, its tombstone, its accounts."""
        return [self.lease, self.tombstone, *(sight.place.key for sight in self.sights)]

    def observe(self, tells: int) -> None:
        """Note which account would have refused it (from 1; 0: none)."""
        if tells and self.observed is None:
            self.observed = self.lines[tells - 1].account


# -- what a script answers --------------------------------------------------------------------------------------------

_EVENTS: Final[dict[str, Literal["limit_nearing", "limit_exceeded"]]] = {"n": "limit_nearing", "x": "limit_exceeded"}
STRANGE: Final = "because it answers what no script of ours says"
_LARGEST: Final = 1 << 63
UNREADABLE: Final = "because what it says of an account cannot be read: it is spoilt, or of another version"
_AMOUNT: Final = r" \d{1,20}"
_WHY: Final = " (?:exhausted|too_large|draining|contended)"
_HEAD: Final = re.compile(
    f"[ONS]|S [01]|[LU]{_AMOUNT}|G{_AMOUNT} =|[GE]{_AMOUNT} [\\d,]*|D{_AMOUNT}{_WHY}{_AMOUNT}{_AMOUNT}"
    f"|X{_AMOUNT}{_AMOUNT}{_WHY}{_AMOUNT}{_AMOUNT}"
)
"""How each answer begins: what the scripts of this directory say in their first lines."""

_OFTEN: Final = {b"G 0 =": ("G", "0", "="), b"S": ("S",)}
_NO_STATE: Final = 0
_ALL: Final = ("=",)
_HELD: Final = Nature.HELD


class Reply:
    """Be an answer's parts: its head's words, what was crossed, and the state of each account, one behind the other."""

    __slots__ = ("crossings", "states", "words")

    words: Sequence[str]
    states: bytes

    def __init__(self, raw: object) -> None:
        if not isinstance(raw, bytes):
            raise StoreError(STRANGE)
        try:
            head, _, rest = raw.partition(b";")
            crossings, _, self.states = rest.partition(b";")
            self.words = _OFTEN.get(head) or _words(head.decode("ascii"))
            self.crossings = [_crossing(one) for one in crossings.decode("ascii").split(",")] if crossings else []
        except (ValueError, KeyError, IndexError):
            raise StoreError(STRANGE) from None

    @property
    def letter(self) -> str:
        """Give what it is."""
        return self.words[0]

    def of(self, letters: str) -> Reply:
        """Be it, where one of these letters is what the script that was asked says; StoreError for another's answer."""
        if self.letter not in letters:
            raise StoreError(STRANGE)
        return self

    def there(self) -> Reply:
        """Be it, unless it says that the store has forgotten what was counted in it, or keeps what cannot be read: StoreError."""
        if self.letter == "L":
            raise StoreError("because what was counted in it is gone", "store_lost")
        if self.letter == "U":
            raise StoreError(UNREADABLE)
        return self

    def admits(self, lines: Sequence[Line]) -> tuple[int, list[int]]:
        """Give which of these lines is only observed (from 1; 0: none), and what is held of each: "=" is all that was wanted."""
        if self.words[2:] != _ALL:
            return self.grants(len(lines))
        return self.tells(len(lines)), [bounded(line.want) if line.carved or line.account.nature is _HELD else 0 for line in lines]

    def grants(self, count: int) -> tuple[int, list[int]]:
        """Give which account is only observed (from 1; 0: none), and what is held of each of so many."""
        at = self.tells(count)
        try:
            held = [int(one) for one in self.words[2].split(",")]
        except (ValueError, IndexError):
            raise StoreError(STRANGE) from None
        if len(held) != count:
            raise StoreError(STRANGE)
        return at, held

    def tells(self, count: int) -> int:
        """Give which of so many accounts is only observed (from 1; 0: none)."""
        try:
            at = int(self.words[1])
        except (ValueError, IndexError):
            raise StoreError(STRANGE) from None
        if at > count:
            raise StoreError(STRANGE)
        return at

    def denies(self, count: int, begins: int = 1) -> tuple[int, str, int, int]:
        """Give which of so many accounts refuses (from 0), why, and what is used and held of it; `begins` is where that stands."""
        try:
            number, reason, used, held = self.words[begins:]
            at, amounts = int(number), (int(used), int(held))
        except ValueError:
            raise StoreError(STRANGE) from None
        if not 1 <= at <= count:
            raise StoreError(STRANGE)
        return at - 1, reason, *amounts

    def show(self, lines: Sequence[tuple[Account, Sight]], now_ns: int = 0) -> bool:
        """Write the states into the accounts, as they were seen at `now_ns`, and return whether there is one of each; under the lock."""
        said, at, whole = self.states, 0, True
        try:
            for account, sight in lines:
                if said[at] == _NO_STATE:
                    at, whole = at + 1, False
                else:
                    at = _show_state(account, sight, said, at)
                sight.seen_ns = now_ns or sight.seen_ns
        except (ValueError, IndexError, OverflowError, struct.error):
            raise StoreError(UNREADABLE) from None
        if at != len(said):
            raise StoreError(UNREADABLE)
        return whole

    def crossed(self, accounts: Sequence[Account], phase: Phase, decision: str | None, other: str = "admitted") -> list[Crossing]:
        """Give what was crossed; without a `decision`, each account's own: observed, or the `other`."""
        found: list[Crossing] = []
        for at, event, used, held in self.crossings:
            if not 0 <= at < len(accounts):
                raise StoreError(STRANGE)
            account = accounts[at]
            said = decision or ("observed" if account.observe else other)
            found.append(Crossing(account, event, phase, said, used, held))
        return found


def numbers(found: object, count: int) -> list[int]:
    """Give so many whole numbers that a script answers, or StoreError."""
    if not isinstance(found, list):
        raise StoreError(STRANGE)
    given = cast("list[object]", found)
    if len(given) != count or not all(isinstance(one, int) and 0 <= one < _LARGEST for one in given):
        raise StoreError(STRANGE)
    return cast("list[int]", given)


def _words(head: str) -> Sequence[str]:
    if _HEAD.fullmatch(head) is None:
        raise StoreError(STRANGE)
    return head.split(" ")


def _crossing(text: str) -> tuple[int, Literal["limit_nearing", "limit_exceeded"], int, int]:
    place, used, held = text.split(" ")
    return int(place[:-1]) - 1, _EVENTS[place[-1]], int(used), int(held)


# -- what operators are shown -----------------------------------------------------------------------------------------

_MOST_DIGITS: Final = 20
_OF_A_PAGE, _OF_A_ROW = 3, 4
_NOT_OURS: Final = "because it holds what no process of ours writes"


def listed_page(answer: object) -> tuple[str, int, list[object]]:
    """Give the next cursor, how many processes are seen, and the rows of one answer."""
    found = listed(answer)
    if len(found) != _OF_A_PAGE or not isinstance(found[1], int):
        raise StoreError(_NOT_OURS)
    return _text(found[0]), max(0, found[1]), listed(found[2])


def counter_of(found: object) -> tuple[Counter, int]:
    """Give a counter, and how many stand in line for it."""
    parts = listed(found)
    if len(parts) != _OF_A_ROW:
        raise StoreError(_NOT_OURS)
    at, key, state, declared = parts
    return _counter(_text(at), _text(key), state, _text(declared))


def listed(found: object) -> list[object]:
    """Return a list that a script answers, or raise StoreError."""
    if not isinstance(found, list):
        raise StoreError(_NOT_OURS)
    return cast("list[object]", found)


def _text(found: object) -> str:
    try:
        return found.decode("utf-8", "surrogatepass") if isinstance(found, bytes) else str(found)
    except UnicodeDecodeError:
        raise StoreError(_NOT_OURS) from None


def _counter(at: str, key: str, said: object, declared: str) -> tuple[Counter, int]:
    try:
        state = read_state(said if isinstance(said, bytes) else b"")
    except ValueError:
        raise StoreError(_NOT_OURS) from None
    counter = Counter(
        at,
        key,
        state.value,
        state.used,
        state.held,
        state.denied,
        near=state.flags & _NEAR != 0,
        exceeded=state.flags & _EXCEEDED != 0,
        draining=state.flags & _DRAINING != 0,
        declared=int(declared) if _is_amount(declared) else None,
        used_s=float(state.last_s),
        epoch=state.epoch,
    )
    return counter, state.waiting


def _is_amount(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= _MOST_DIGITS
