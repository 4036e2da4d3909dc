"""Read what the scripts answer, and what an operation looks like that a store keeps."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Final, Literal, cast

from ravi_otel._enforcement.ledger.account import Account, Nature
from ravi_otel._enforcement.ledger.contract import Crossing, Line, Reservation
from ravi_otel._enforcement.ledger.failing import StoreError
from ravi_otel._enforcement.ledger.judge import Operation
from ravi_otel._enforcement.ledger.redis.places import Sight, Twin, bounded, show
from ravi_otel.hooks.records import Phase

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


class Shared(Operation):
    """Remember an operation that holds something in the store: of `shared`, the numbers of its lines there, under `lease`.

    What it holds of lines that are this process's own is an operation of its own, `local`, on the lines `own`.
    """

    __slots__ = ("bit", "extended", "lease", "local", "name", "own", "shared", "sights", "tombstone", "twins")

    def __init__(self, request: Reservation, held: list[int], observed: Account | None, shared: Sequence[int]) -> None:
        super().__init__(request, held, observed)
        self.shared = shared
        self.own: Sequence[int] = ()
        self.local: Operation | None = None
        self.sights: Sequence[Sight | None] = ()
        self.twins: Sequence[Twin] = ()
        self.lease = self.name = self.tombstone = self.bit = ""
        self.extended = 0
        self.taken = len(self.lines)

    def take_up(self, local: Operation, own: Sequence[int]) -> None:
        """Have what is held in this process, too."""
        self.local, self.own = local, own
        self.show_own()

    def show_own(self) -> None:
        """Say what of this process's own lines is held now."""
        if self.local is not None:
            held = self.share()
            for at, (_, hold) in zip(self.own, self.local.holds, strict=True):
                held[at] = hold


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

    def show(self, lines: Sequence[tuple[Account, Sight]], now_ns: int = 0) -> None:
        """Write the states into the accounts, as they were seen at `now_ns`; under the ledger's lock."""
        said, at = self.states, 0
        try:
            for account, sight in lines:
                at = at + 1 if said[at] == _NO_STATE else show(account, sight, said, at)
                sight.seen_ns = now_ns or sight.seen_ns
        except (ValueError, IndexError, OverflowError, struct.error):
            raise StoreError(UNREADABLE) from None
        if at != len(said):
            raise StoreError(UNREADABLE)

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


def overage(line: Line, hold: int, told: int | None) -> int:
    """Give by how much settling passes what was held of a line."""
    held_kind = line.account.nature is Nature.HELD
    return max(0, told - hold) if held_kind and told is not None else 0


def in_order(lines: Sequence[Line], *crossings: Sequence[Crossing]) -> Sequence[Crossing]:
    """Put what was crossed here and there in the order of the lines."""
    filled = [each for each in crossings if each]
    if len(filled) < 2:  # noqa: PLR2004 - with one or none there is nothing to order
        return filled[0] if filled else ()
    order = {id(line.account): at for at, line in enumerate(lines)}
    return sorted((one for each in filled for one in each), key=lambda one: order.get(id(one.account), 0))
