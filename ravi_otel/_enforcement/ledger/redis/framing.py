"""Read one answer of a Redis out of the pieces it comes in, and no more of it than we ever ask for.

A parser that makes room for whatever a header announces stands still for minutes, and its process with it, where a server lies.
"""

from __future__ import annotations

from typing import Any, Final

from ravi_otel._enforcement.ledger.failing import StoreError

Words = bytes | int | None | list[Any]

MOST_BYTES: Final = 16 << 20
"""How long an answer may be: a listing of some hundred counters is the longest we ask for."""

MOST_ELEMENTS: Final = 1 << 14
_LONGEST_WORD: Final = 1 << 20
_LONGEST_LINE: Final = 1 << 13
_MOST_DIGITS: Final = 20
_DEEPEST: Final = 8
_CRLF: Final = b"\r\n"
_PLUS, _MINUS, _COLON, _DOLLAR, _STAR = b"+-:$*"


class ForeignAnswerError(StoreError):
    """Tell that what came is no answer, or a longer one than any we ask for."""

    def __init__(self) -> None:
        super().__init__("because it answers what no server of ours says")


class SaidNoError(Exception):
    """Carry the words of an answer that is an error."""


class Answer:
    """Put one answer together. `value` is what it says, once `feed` has told that it is whole."""

    __slots__ = ("_at", "_buffer", "_elements", "_open", "_word", "value")

    def __init__(self) -> None:
        self.value: Words = None
        self._buffer = bytearray()
        self._at = self._elements = 0
        self._word = -1  # how long the word is that is being read, behind its header
        self._open: list[tuple[int, list[Any]]] = []

    def feed(self, piece: bytes) -> bool:
        """Take what came; tell whether the answer is whole. ForeignAnswerError for what is none, SaidNoError for one that is an error."""
        self._buffer += piece
        if len(self._buffer) > MOST_BYTES:
            raise ForeignAnswerError
        while True:
            if self._word < 0 and not self._header():
                return False
            if self._word >= 0 and not self._whole_word():
                return False
            if self._word < 0 and self._closed():
                if self._at != len(self._buffer):
                    raise ForeignAnswerError  # nobody has asked for what comes behind it
                return True

    def _header(self) -> bool:
        """Read a header; False where it is not all there."""
        end = self._buffer.find(_CRLF, self._at)
        if end < 0:
            if len(self._buffer) - self._at > _LONGEST_LINE:
                raise ForeignAnswerError
            return False
        kind, line = self._buffer[self._at], bytes(self._buffer[self._at + 1 : end])
        self._at = end + len(_CRLF)
        if kind == _PLUS:
            self._put(line)
        elif kind == _MINUS and not self._open:
            raise SaidNoError(line.decode("utf-8", "replace"))
        elif kind == _COLON:
            self._put(_number(line))
        elif kind in (_DOLLAR, _STAR):
            self._begin(kind, _number(line))
        else:
            raise ForeignAnswerError
        return True

    def _begin(self, kind: int, length: int) -> None:
        if length == -1:
            self._put(None)
        elif kind == _DOLLAR and 0 <= length <= _LONGEST_WORD:
            self._word = length
        elif kind == _STAR and 0 <= length <= MOST_ELEMENTS - self._elements and len(self._open) < _DEEPEST:
            self._elements += length
            self._open.append((length, []))
        else:
            raise ForeignAnswerError

    def _whole_word(self) -> bool:
        end = self._at + self._word
        if len(self._buffer) < end + len(_CRLF):
            return False
        if not self._buffer.startswith(_CRLF, end):
            raise ForeignAnswerError
        word, self._at, self._word = bytes(self._buffer[self._at : end]), end + len(_CRLF), -1
        self._put(word)
        return True

    def _put(self, value: Words) -> None:
        if self._open:
            self._open[-1][1].append(value)
        else:
            self.value = value

    def _closed(self) -> bool:
        """Put lists that have all their elements where they belong; tell whether nothing is missing any more."""
        while self._open and len(self._open[-1][1]) == self._open[-1][0]:
            self._put(self._open.pop()[1])
        return not self._open


def one_word(piece: bytes) -> bytes | None:
    """Give the one word that a piece is, as nearly every answer is; None where it is anything else."""
    end = piece.find(_CRLF, 0, _MOST_DIGITS)
    if piece[:1] != b"$" or end < 0 or not piece.endswith(_CRLF):
        return None
    digits, begins = piece[1:end], end + len(_CRLF)
    whole = digits.isdigit() and len(piece) == begins + int(digits) + len(_CRLF)
    return piece[begins : -len(_CRLF)] if whole else None


def _number(line: bytes) -> int:
    digits = line.removeprefix(b"-")
    if not digits.isdigit() or len(digits) > _MOST_DIGITS:
        raise ForeignAnswerError
    return int(line)
