"""Ask the person at the terminal."""

from __future__ import annotations

import contextlib
import os
import select
import termios
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from ravi_otel._flow import Flow
from ravi_otel.errors import ConfigurationError, RaviError
from ravi_otel.policy._contracts import Coloured, JsonObject
from ravi_otel.supervisor.approval import approvers, frozen
from ravi_otel.supervisor.approval.asking import Patience, coloured, wall_clock
from ravi_otel.supervisor.approval.contract import NO_TERMINAL, NOT_AN_APPROVER, ApprovalAnswer, ApprovalRequest
from ravi_otel.supervisor.approval.editing import changed
from ravi_otel.supervisor.approval.rows import EXPIRED
from ravi_otel.supervisor.approval.sentences import login

_TERMINAL: Final = "/dev/tty"
_LONGEST_PAUSE_S: Final = 0.1
_MOST_LINE: Final = 65_536
_QUESTION: Final = "Run it? [y]es, [n]o, [e]dit: "
_EDITING: Final = "One change a line, as amount_usd=500 (JSON, else text), or name= to leave one out; an empty line ends it."
_YES: Final = frozenset({"y", "yes"})
_NO: Final = frozenset({"n", "no"})
_EDIT: Final = frozenset({"e", "edit"})
_asking: dict[tuple[int, str], object] = {}
"""Terminals at which a question of a process stands: two at once would read each other's answers."""


class _Gone(Exception):  # noqa: N818 - a state, told by one function of ours to the next
    """Say that nobody is at the terminal any more."""


class TerminalApprover:
    """Ask on the controlling terminal, whatever the program's own input and output are; `device` names another one.

    Shows exactly the frozen arguments, as JSON with every character but plain ASCII escaped, so that different arguments never look alike;
    takes yes, no, or an edit, which is shown and asked about again. What was typed before the question is thrown away. One question at a
    time: others of the process wait for their turn. `who` is the login of the process's user.
    """

    def __init__(self, device: str = _TERMINAL) -> None:
        if not isinstance(device, str) or not device:  # pyright: ignore[reportUnnecessaryIsInstance]  # a program's own argument
            raise ConfigurationError("TerminalApprover(device) must be the path of a terminal, such as '/dev/tty'.")
        self._device = device

    def __repr__(self) -> str:
        return f"<TerminalApprover {self._device!r}>"

    def ask(self, request: ApprovalRequest) -> Coloured[ApprovalAnswer]:
        """Ask, and wait for the answer; where an event loop runs, await what this gives.

        Not approved with "no_terminal" where there is none or it is hung up, with "expired" past `expires_at`. Raises what ends the scope:
        cancelled, closed, or its time is up.
        """
        return coloured(partial(self._asking, request))

    def executed(self, request: ApprovalRequest, status: str) -> None:
        """Hear how it ended; a terminal has no use for it."""

    def _asking(self, request: ApprovalRequest) -> Flow[ApprovalAnswer]:
        arguments: JsonObject = frozen.read(frozen.exact(request.arguments))
        with Patience(_LONGEST_PAUSE_S) as patience, contextlib.ExitStack() as open_ones:
            try:
                while not _taken(self._device, open_ones):
                    _refuse_late(request)
                    yield from patience.rest(_left_s(request))
                at = _Prompt(open_ones.enter_context(_opened(self._device)), request, patience)
                return (yield from _answered(at, request, arguments))
            except _Gone:
                return ApprovalAnswer(approved=False, comment=NO_TERMINAL)
            except TimeoutError:
                return EXPIRED


class _Prompt:
    """Be one question at a terminal: says lines, and reads them without keeping the thread or the event loop."""

    def __init__(self, opened: int, request: ApprovalRequest, patience: Patience) -> None:
        self._opened = opened
        self._request = request
        self._patience = patience
        self._typed = b""

    def say(self, *lines: str, end: str = "\n") -> None:
        """Write lines, of ASCII alone."""
        left = memoryview(("\n".join(lines) + end).encode("ascii", "backslashreplace"))
        try:
            while left:
                left = left[os.write(self._opened, left) :]
        except OSError as error:
            raise _Gone from error

    def hear(self, question: str) -> Flow[str]:
        """Ask for one line; raises TimeoutError past the request's end."""
        self.say(question, end="")
        while b"\n" not in self._typed:
            if not self._ready():
                _refuse_late(self._request, self)
                yield from self._patience.rest(_left_s(self._request), self._wait)
                continue
            try:
                part = os.read(self._opened, 4_096)
            except OSError as error:
                raise _Gone from error
            self._typed += part
            if not part or len(self._typed) > _MOST_LINE:
                raise _Gone
        line, _, self._typed = self._typed.partition(b"\n")
        _refuse_late(self._request, self)
        return line.decode("utf-8", "replace").strip()

    def _ready(self) -> bool:
        return self._wait(0)

    def _wait(self, longest_s: float) -> bool:
        if not _in_front(self._opened):
            time.sleep(longest_s)
            return False
        return bool(select.select([self._opened], [], [], longest_s)[0])


def _answered(at: _Prompt, request: ApprovalRequest, asked: JsonObject) -> Flow[ApprovalAnswer]:
    """Ask until there is a yes or a no."""
    at.say(*_described(request))
    arguments, now = asked, frozen.exact(asked)
    while True:
        at.say(*(f"  {line}" for line in frozen.shown(arguments)))
        said = (yield from at.hear(_QUESTION)).lower()
        me = login()
        answer = ApprovalAnswer(approved=said in _YES, who=me, identity=approvers.of_login(me))
        if said in _YES:
            wrong = approvers.refusal(request, answer)
            if wrong is not None:
                at.say(frozen.escaped(wrong))
                return ApprovalAnswer(approved=False, comment=NOT_AN_APPROVER, identity=answer.identity)
            return replace(answer, arguments=None if now == frozen.exact(asked) else arguments)
        if said in _NO:
            comment = yield from at.hear("Why not? (the model is told) ")
            return replace(answer, comment=frozen.reading(comment))
        if said in _EDIT:
            arguments = yield from _edited(at, arguments)
            now = frozen.exact(arguments)
        else:
            at.say("Please answer y, n or e.")


def _edited(at: _Prompt, arguments: JsonObject) -> Flow[JsonObject]:
    """Take changes, one a line; what cannot be read changes nothing, and is said."""
    at.say(_EDITING)
    while True:
        line = yield from at.hear("> ")
        if not line:
            return arguments
        try:
            fresh = changed(arguments, [line])
            frozen.exact(fresh)
        except RaviError as error:
            at.say(frozen.escaped(str(error)))
        else:
            arguments = fresh


def _described(request: ApprovalRequest) -> list[str]:
    """Say who asks for what, and why; names are told as they can be seen, and bind nothing."""
    by = f", agent {frozen.escaped(request.agent_name)}" if request.agent_name else ""
    risk = "" if request.risk_score is None else f"  risk {request.risk_score:g}"
    head = f"A call of {frozen.escaped(request.tool)} needs your approval{by} ({frozen.escaped(request.reason)}){risk}"
    return ["", head, "It would run with exactly these arguments:"]


def _left_s(request: ApprovalRequest) -> float | None:
    return None if request.expires_at is None else request.expires_at - wall_clock()


def _refuse_late(request: ApprovalRequest, at: _Prompt | None = None) -> None:
    left_s = _left_s(request)
    if left_s is not None and left_s <= 0:
        if at is not None:
            at.say("", "It has expired: nothing is run.")
        raise TimeoutError


def _taken(device: str, until: contextlib.ExitStack) -> bool:
    """Take the turn at a terminal, until it is left; False while another question stands there. Atomic, and waits for nothing."""
    key, mine = (os.getpid(), device), object()
    if _asking.setdefault(key, mine) is not mine:
        return False
    until.callback(_asking.pop, key, None)
    return True


def _in_front(opened: int) -> bool:
    """Tell that the process may read its terminal: one in the background is stopped when it does."""
    try:
        return os.tcgetpgrp(opened) == os.getpgrp()
    except OSError:  # not the terminal that controls the process: nothing stops it there
        return True


@contextmanager
def _opened(device: str) -> Generator[int, None, None]:
    """Open the terminal, and throw away what was typed before it was asked."""
    try:
        opened = os.open(device, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise _Gone from error
    try:
        if not os.isatty(opened):
            raise _Gone
        if _in_front(opened):
            with contextlib.suppress(termios.error):
                termios.tcflush(opened, termios.TCIFLUSH)
        yield opened
    finally:
        os.close(opened)
