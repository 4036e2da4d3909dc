"""Ask every process of a store for its state, all at once and away from the screen: one that is slow holds up nobody."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ravi_otel.local.live.client import Session
from ravi_otel.local.live.place import Entry, entries
from ravi_otel.local.live.protocol import LiveError, ProcessState
from ravi_otel.local.wording import clean

ANSWER_S: Final = 1.0
"""How long a process is waited for before it is asked anew."""

_AT_ONCE: Final = 16
_REST_S: Final = 2.0
_MOST_SENTENCE: Final = 300
_NOBODY: Final = (ConnectionRefusedError, FileNotFoundError)


@dataclass(frozen=True, slots=True)
class Watched:
    """Be one process as it was seen last; `trouble` says in a few words why it is not seen now, None where all is well."""

    session: Session
    process: ProcessState | None = None
    trouble: str | None = None

    @property
    def key(self) -> str:
        """Name it for as long as it is there."""
        return str(self.session.path)


@dataclass(slots=True)
class _Question:
    """Follow one process: what is under way, since when it owes an answer, what it said last, and whether nobody listens there."""

    last: Watched
    entry: Entry
    answer: Future[ProcessState] | None = None
    asked_at: float = 0.0
    owing_since: float | None = None
    not_before: float = 0.0
    absent: bool = False


class Watch:
    """Watch the processes of a store; for one thread at a time.

    A process that does not answer is asked every other second only, so that many of them do not take the threads from others.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._questions: dict[Path, _Question] = {}
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="ravi-otel-top")

    def look(self, patience_s: float) -> list[Watched]:
        """Ask all, wait so long at most for the ones that are not known to be slow, and give what is known of each, by number."""
        found = sorted(entries(self._store), key=lambda entry: entry.pid)
        for gone in self._questions.keys() - {entry.socket for entry in found}:
            del self._questions[gone]
        asked = [self._questions.setdefault(entry.socket, _question(entry)) for entry in found]
        for question in asked:
            self._begin(question)
        wait([each.answer for each in asked if each.answer is not None and each.owing_since is None], patience_s)
        return [seen for question in asked if (seen := self._seen(question)) is not None]

    def close(self) -> None:
        """Ask no more; what is under way ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _begin(self, question: _Question) -> None:
        if question.answer is None and time.monotonic() >= question.not_before:
            question.asked_at = time.monotonic()
            question.answer = self._threads.submit(question.last.session.state)

    def _seen(self, question: _Question) -> Watched | None:
        answer = question.answer
        if question.absent and (answer is None or not answer.done()):
            return None
        if answer is None or not answer.done():
            return self._owing(question, marked=answer is None or question.last.process is None)
        question.answer, question.absent = None, False
        try:
            question.last = Watched(question.last.session, answer.result())
        except LiveError as error:
            if isinstance(error.__cause__, _NOBODY):
                _tidy(question)
                return None
            if isinstance(error.__cause__, TimeoutError):
                question.not_before = time.monotonic() + _REST_S
                return self._owing(question, marked=True)
            question.last = replace(question.last, trouble=clean(str(error), _MOST_SENTENCE))
        question.owing_since = None
        return question.last

    def _owing(self, question: _Question, *, marked: bool) -> Watched:
        """Give what was known of a process that has not answered; one that needs a moment longer is not marked yet."""
        if question.owing_since is None:
            if not marked:
                return question.last
            question.owing_since = question.asked_at
        question.last = replace(question.last, trouble=f"has not answered for {int(time.monotonic() - question.owing_since)} s")
        return question.last


def _question(entry: Entry) -> _Question:
    return _Question(Watched(Session(entry.socket, entry.pid, ANSWER_S)), entry)


def _tidy(question: _Question) -> None:
    """Remove what a process has left that is gone; one that only does not listen yet, or any more, is asked again."""
    question.owing_since, question.absent = None, True
    if question.entry.is_left_over():
        question.entry.remove()
