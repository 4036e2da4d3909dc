"""Ask every process of a store for its state, all at once and away from the screen: one that is slow holds up nobody."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ravi_otel.local.live import LiveError, ProcessState, Session, sessions
from ravi_otel.local.wording import clean

ANSWER_S: Final = 1.0
"""How long a process is waited for before it is asked anew."""

_AT_ONCE: Final = 16
_REST_S: Final = 2.0
_MOST_SENTENCE: Final = 300


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
    """Follow one process: what is under way, since when it owes an answer, and what it said last."""

    last: Watched
    answer: Future[ProcessState] | None = None
    asked_at: float = 0.0
    owing_since: float | None = None
    not_before: float = 0.0


class Watch:
    """Watch the processes of a store; for one thread at a time.

    A process that does not answer is asked every other second only, so that many of them do not take the threads from others.
    """

    def __init__(self, store: Path, *, find: Callable[[Path], Sequence[Session]] | None = None) -> None:
        self._store = store
        self._find = _sessions if find is None else find
        self._questions: dict[Path, _Question] = {}
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="ravi-otel-top")

    def look(self, patience_s: float) -> list[Watched]:
        """Ask all, wait so long at most for the ones that are not known to be slow, and give what is known of each, by number."""
        found = self._find(self._store)
        for gone in self._questions.keys() - {session.path for session in found}:
            del self._questions[gone]
        asked = [self._questions.setdefault(session.path, _Question(Watched(session))) for session in found]
        for question in asked:
            self._begin(question)
        wait([each.answer for each in asked if each.answer is not None and each.owing_since is None], patience_s)
        return [self._seen(question) for question in asked]

    def close(self) -> None:
        """Ask no more; what is under way ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _begin(self, question: _Question) -> None:
        if question.answer is None and time.monotonic() >= question.not_before:
            question.asked_at = time.monotonic()
            question.answer = self._threads.submit(question.last.session.state)

    def _seen(self, question: _Question) -> Watched:
        answer = question.answer
        if answer is None or not answer.done():
            return self._owing(question, marked=answer is None or question.last.process is None)
        question.answer = None
        try:
            question.last = Watched(question.last.session, answer.result())
        except LiveError as error:
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


def _sessions(store: Path) -> Sequence[Session]:
    return sessions(store, timeout_s=ANSWER_S)
