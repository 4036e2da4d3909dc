"""Remember which operations are over, one bit each, and forget what nobody has used for long.

A message may come again, also in another process: it must count once. So an operation leaves a trace for as long as counters live.
Its row is turned into a bit when there are some more, because a step that writes few pages is a quick one.
"""

from __future__ import annotations

import re
from typing import Final

from ravi_otel._enforcement.ledger.contract import number_here
from ravi_otel._enforcement.ledger.sqlite.file import LedgerFile

OVER: Final = 2
BATCH: Final = 64
"""How many rows of operations that are over a process leaves before it turns them into bits."""

KEPT_S: Final = 7 * 24 * 3600
"""How long it is known what is over."""

_PART: Final = 4_096
_MOST_FORGOTTEN: Final = 1_000
_EVERY_S: Final = 3600
_MADE: Final = re.compile(r"([0-9a-f]{1,16}-[0-9a-f]{8})-(0|[1-9][0-9]{0,14})")


_newest = [0]
"""The highest number of an operation that this process has reserved, in whichever ledger."""


def is_fresh(op_id: str) -> bool:
    """Whether nobody can have asked for this operation before: it is this process's own, and newer than all others. Asked once for each."""
    number = number_here(op_id)
    fresh = number > _newest[0]
    if fresh:
        _newest[0] = number
    return fresh


class SettledIds:
    """Be the end of this process's operations, as far as the file does not say it in bits yet; changed under the ledger's lock."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self._cleaned_s = -_EVERY_S

    def write(self, file: LedgerFile, now_s: int) -> int:
        """Turn them into bits; give how many, to be handed to `written` when the step is."""
        numbers: dict[tuple[str, int], int] = {}
        done = [(op_id, made) for op_id in self.ended if (made := parts(op_id)) is not None]
        for _, (prefix, part, bit) in done:
            numbers[prefix, part] = numbers.get((prefix, part), 0) | 1 << bit
        for (prefix, part), bits in numbers.items():
            known = bits_of(file, prefix, part)
            written = (known | bits).to_bytes(_PART // 8, "little")
            file.run("INSERT OR REPLACE INTO ended (prefix, part, bits, at) VALUES (?, ?, ?, ?)", (prefix, part, written, now_s))
        file.many("DELETE FROM operations WHERE op = ? AND state = 2", [(op_id,) for op_id, _ in done])
        return len(self.ended)

    def written(self, count: int) -> None:
        """Forget what the file says in bits now."""
        del self.ended[:count]

    def clean(self, file: LedgerFile, now_s: int) -> None:
        """Delete what nobody has used for long; once an hour, and not all of very much at once."""
        if abs(now_s - self._cleaned_s) < _EVERY_S:
            return
        self._cleaned_s = now_s
        old = now_s - KEPT_S
        gone = file.all(
            "SELECT id FROM accounts WHERE held IN (0, '0') AND seen < ? - max(lasts, ?) LIMIT ?",
            (now_s, min(KEPT_S, round(file.keep_s)), _MOST_FORGOTTEN),
        )
        if gone:
            file.many("DELETE FROM names WHERE id = ?", gone)
            file.many("DELETE FROM accounts WHERE id = ?", gone)
        file.run("DELETE FROM ended WHERE at < ?", (old,))
        file.run("DELETE FROM operations WHERE at < ? AND (state != 0 OR holds = '[]')", (old,))


def parts(op_id: str) -> tuple[str, int, int] | None:
    """Give the process that made an operation's id, and where its bit is; None for an id that was made otherwise."""
    made = _MADE.fullmatch(op_id)
    return None if made is None else (made[1], *divmod(int(made[2]), _PART))


def bits_of(file: LedgerFile, prefix: str, part: int) -> int:
    """Read which operations of a process are over."""
    found = file.all("SELECT bits FROM ended WHERE prefix = ? AND part = ?", (prefix, part))
    return int.from_bytes(found[0][0], "little") if found and isinstance(found[0][0], bytes) and len(found[0][0]) == _PART // 8 else 0


def is_over(file: LedgerFile, op_id: str) -> bool:
    """Tell that an operation was ended, as far as the bits say."""
    made = parts(op_id)
    return made is not None and bool(bits_of(file, made[0], made[1]) >> made[2] & 1)
