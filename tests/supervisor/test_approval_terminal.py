"""How people are asked at a terminal: a real one, of which the test holds the other end."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import threading
import time
import tty
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import anyio
import pytest
from approval_desk import COLOURS, requested, until

import ravi_otel
from ravi_otel import CancellationError, ConfigurationError, DeadlineExceededError
from ravi_otel.supervisor import ApprovalAnswer, Approver, TerminalApprover
from ravi_otel.supervisor.approval._queue import current_login


class Person:
    """Sit at the other end of a terminal."""

    def __init__(self):
        self.master, self.slave = pty.openpty()
        tty.setcbreak(self.slave)
        self.device = os.ttyname(self.slave)
        self.seen = ""

    def types(self, text):
        os.write(self.master, text.encode())

    def sees(self, text):
        def there():
            while select.select([self.master], [], [], 0)[0]:
                self.seen += os.read(self.master, 4_096).decode()
            return text in self.seen

        until(there)
        before, _, self.seen = self.seen.partition(text)
        return before

    def leaves(self):
        for opened in (self.master, self.slave):
            os.close(opened)


@pytest.fixture
def person():
    one = Person()
    yield one
    one.leaves()


def lasting(arguments=None, **changes):
    return replace(requested(arguments), expires_at=None, **changes)


def asking(colour, device, request):
    approver = TerminalApprover(device)

    async def ask():
        return await approver.ask(request)

    return approver.ask(request) if colour == "sync" else anyio.run(ask, backend=colour)


@pytest.fixture
def asked(person):
    threads = ThreadPoolExecutor(4)
    yield lambda request, colour="sync": threads.submit(asking, colour, person.device, request)
    threads.shutdown()


def test_a_terminal_is_an_approver():
    assert isinstance(TerminalApprover(), Approver)


@pytest.mark.parametrize("colour", COLOURS)
def test_a_yes_approves_exactly_what_was_shown(person, asked, colour):
    answer = asked(lasting({"to": "p\u0430ypal\x1b[2J", "amount_usd": 1200}), colour)
    shown = person.sees("Run it?")
    assert '"to": "p\\u0430ypal\\u001b[2J"' in shown
    assert "\x1b" not in shown
    person.types("y\n")
    assert answer.result(20) == ApprovalAnswer(approved=True, who=current_login())


def test_a_no_says_why(person, asked):
    answer = asked(lasting())
    person.sees("Run it?")
    person.types("no\n")
    person.sees("Why not?")
    person.types("too much\n")
    assert answer.result(20) == ApprovalAnswer(approved=False, comment="too much", who=current_login())


def test_an_edit_is_shown_and_asked_about_again(person, asked):
    answer = asked(lasting())
    person.sees("Run it?")
    person.types("e\n")
    person.sees("> ")
    person.types("amount=5\n")
    person.sees("did you mean 'amount_usd'?")
    person.types("amount_usd=800\n\n")
    assert '"amount_usd": 800' in person.sees("Run it?")
    person.types("yes\n")
    assert answer.result(20) == ApprovalAnswer(approved=True, who=current_login(), arguments={"user_id": 42, "amount_usd": 800})


def test_anything_else_than_yes_is_asked_again(person, asked):
    answer = asked(lasting())
    person.sees("Run it?")
    for word in ("yeah sure", "", "\x1b[A", "1"):
        person.types(f"{word}\n")
        person.sees("Please answer y, n or e.")
        person.sees("Run it?")
    person.types("n\nbecause\n")
    assert answer.result(20).approved is False


def test_what_was_typed_before_the_question_is_no_answer(person, asked):
    person.types("y\n")
    until(lambda: select.select([person.slave], [], [], 0)[0])
    answer = asked(lasting())
    person.sees("Run it?")
    person.types("n\nno\n")
    assert answer.result(20).approved is False


def test_two_questions_take_their_turns(person, asked):
    first = asked(lasting({"user_id": 1}))
    person.sees("Run it?")
    second = asked(lasting({"user_id": 2}))
    person.types("y\n")
    assert first.result(20).approved
    assert '"user_id": 2' in person.sees("Run it?")
    person.types("n\n\n")
    assert second.result(20).approved is False


def test_who_hangs_up_approves_nothing(asked, person):
    answer = asked(lasting())
    person.sees("Run it?")
    os.close(person.slave)
    os.close(person.master)
    assert answer.result(20) == ApprovalAnswer(approved=False, comment="no_terminal")
    person.master, person.slave = pty.openpty()


def test_past_its_end_it_is_expired_and_a_late_yes_counts_for_nothing(person, asked):
    answer = asked(replace(lasting(), expires_at=time.time() + 0.3))
    person.sees("It has expired")
    person.types("y\n")
    assert answer.result(20).comment == "expired"


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("how", ["cancelled", "late"])
def test_what_ends_the_run_ends_the_question(person, colour, how):
    token = ravi_otel.CancellationToken()
    seen = threading.Thread(target=lambda: how == "late" or (person.sees("Run it?"), token.cancel("enough")))
    seen.start()
    with ravi_otel.run("r", limits=["time=0.2s"] if how == "late" else []) as run:
        if how == "cancelled":
            run.scope.cancellation = token
        with pytest.raises(CancellationError if how == "cancelled" else DeadlineExceededError):
            asking(colour, person.device, lasting())
    seen.join()


@pytest.mark.parametrize("device", ["/nowhere/tty", "/dev/null"])
def test_without_a_terminal_nothing_is_approved(device):
    assert TerminalApprover(device).ask(lasting()) == ApprovalAnswer(approved=False, comment="no_terminal")


def test_a_program_without_a_terminal_of_its_own_approves_nothing():
    program = (
        "from ravi_otel.supervisor import ApprovalRequest, TerminalApprover\n"
        "print(TerminalApprover().ask(ApprovalRequest('i', 't', {}, '0' * 64, 's', 'why', 0.0)).comment)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input="y\n", capture_output=True, text=True, start_new_session=True, check=True, timeout=60
    )
    assert done.stdout == "no_terminal\n"


def test_what_names_no_terminal_is_refused():
    with pytest.raises(ConfigurationError, match="path of a terminal"):
        TerminalApprover("")


def test_at_the_terminal_somebody_who_may_not_approve_is_told_so(person):
    request = requested(approvers=("anna",))
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(TerminalApprover(person.device).ask, request)
        person.sees("[e]dit: ")
        person.types("y\n")
        person.sees(f"{current_login()} may not decide about issue_refund: anna may.")
        assert answer.result(20) == ApprovalAnswer(approved=False, comment="not_an_approver")
