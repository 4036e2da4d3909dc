"""Be the rules about amounts and numbers of calls: caps of one call and of a run, and where a person is asked."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ravi_otel.policy import _checks as checks
from ravi_otel.supervisor.decisions import DecisionKind
from ravi_otel.supervisor.rules_contract import Rule
from ravi_otel.supervisor.rules_reading import Case, Vote, at_most, block, check_number, exact_limit


@dataclass(frozen=True)
class Cap(Rule):
    """Let a number be `most` at most in each call, and `least` at least: past it the call is refused, lowered to it, or for a person.

    A call without the number, or with something else in its place, is refused.
    """

    word = "cap"
    choices = ("block", "revise", "escalate")
    field: str
    most: float
    otherwise: str = "block"
    least: float = 0
    reason: str | None = None

    def _check(self) -> None:
        self._checked()
        check_number("least", self.least)
        check_number("most", self.most, least=self.least)

    def judge(self, case: Case) -> Vote | None:
        """Hold the number of one call to the cap."""
        number = case.number(self.field, self.least)
        if isinstance(number, Vote):
            return number
        most = exact_limit(self.most)
        return None if number <= most else _past(self, case, most, self.reason or f"{self.field}_over_cap")


@dataclass(frozen=True)
class CapPerRun(Rule):
    """Let a number be `most` at most over all calls of the run together, those that run and those that failed counted.

    Negative amounts are refused, and make no room where another rule let them through. With `otherwise` "revise" a call is lowered to
    what is left; with nothing left it is refused.
    """

    word = "cap_per_run"
    reads_past = True
    choices = ("block", "revise", "escalate")
    field: str
    most: float
    otherwise: str = "block"
    least: float = 0
    reason: str | None = None
    exhausted_reason: str | None = None

    def _check(self) -> None:
        self._checked()
        checks.optional_name("exhausted_reason", self.exhausted_reason)
        check_number("least", self.least, least=0)
        check_number("most", self.most, least=0)

    def judge(self, case: Case) -> Vote | None:
        """Hold the sum with this call to the cap."""
        number = case.number(self.field, self.least)
        if isinstance(number, Vote):
            return number
        spent = case.spent(self.tools, self.field)
        if spent is None:
            return block(f"unreadable_past_{self.field}")
        left = exact_limit(self.most) - spent
        if number <= left:
            return None
        if self.otherwise == "revise" and left <= 0:
            return block(self.exhausted_reason or f"{self.field}_exhausted_in_run")
        return _past(self, case, left, self.reason or f"{self.field}_over_run_cap")


def _past(rule: Cap | CapPerRun, case: Case, most: Fraction, reason: str) -> Vote:
    """Do what a rule says of a number past its cap; one that cannot be lowered without going under `least` is refused."""
    if rule.otherwise != "revise":
        return Vote(DecisionKind(rule.otherwise), reason)
    lowered = at_most(most, case.value(rule.field))
    if lowered < rule.least or lowered <= 0:
        return block(reason)
    return Vote(DecisionKind.REVISE, reason, (rule.field, lowered))


@dataclass(frozen=True)
class EscalateAbove(Rule):
    """Ask a person about every call whose number is more than `most`; one without the number is refused."""

    word = "escalate_above"
    field: str
    most: float
    least: float = 0
    reason: str | None = None

    def _check(self) -> None:
        self._checked()
        check_number("least", self.least)
        check_number("most", self.most)

    def judge(self, case: Case) -> Vote | None:
        """Look at the number."""
        number = case.number(self.field, self.least)
        if isinstance(number, Vote):
            return number
        if number <= exact_limit(self.most):
            return None
        return Vote(DecisionKind.ESCALATE, self.reason or f"{self.field}_above_{self.most:.15g}_needs_a_person")


@dataclass(frozen=True)
class MostCalls(Rule):
    """Let `most` calls of its tools together begin in a run."""

    word = "most_calls"
    reads_past = True
    choices = ("block", "escalate")
    most: int
    otherwise: str = "block"
    reason: str | None = None

    def _check(self) -> None:
        self._checked()
        self._set("most", checks.count("most", self.most))

    def judge(self, case: Case) -> Vote | None:
        """Count."""
        full = case.begun(self.tools) >= self.most
        return Vote(DecisionKind(self.otherwise), self.reason or f"{case.tool}_called_often_enough") if full else None
