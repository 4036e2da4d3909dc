"""Be the rules about order, fields and tools, and name every rule there is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks
from ravi_otel.supervisor.decisions import DecisionKind
from ravi_otel.supervisor.rules_amounts import Cap, CapPerRun, EscalateAbove, MostCalls
from ravi_otel.supervisor.rules_contract import Names, Rule
from ravi_otel.supervisor.rules_reading import MISSING, Case, Vote, block, check_field, check_names, check_value, folded, is_blank, key_of

# -- order --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NeedsFirst(Rule):
    """Refuse a call until each tool of `first` was done, with the same values in the fields of `same` ("user_id")."""

    word = "needs_first"
    reads_past = True
    first: Names
    same: Names = ()
    reason: str | None = None

    def _check(self) -> None:
        self._checked()
        self._set("first", check_names("first", self.first))
        self._set("same", tuple(check_field("same", each) for each in check_names("same", self.same)) if self.same else ())

    def judge(self, case: Case) -> Vote | None:
        """Look for what must have been done."""
        lacking = next((each for each in self.first if not case.done(each, self.same)), None)
        return None if lacking is None else block(self.reason or f"{lacking}_needed_first")

    def fields_read(self) -> tuple[str, ...]:
        """List the fields that must be the same."""
        return tuple(self.same)


@dataclass(frozen=True)
class InOrder(Rule):
    """Take its tools in the order they are listed in: each after all before it are done, and never again once a later one has begun."""

    word = "in_order"
    reads_past = True
    reason: str | None = None

    def _check(self) -> None:
        self._checked()

    def judge(self, case: Case) -> Vote | None:
        """Look at what is done, and begun."""
        at = self.tools.index(case.tool)
        early = not all(case.done(each) for each in self.tools[:at])
        return block(self.reason or f"{case.tool}_out_of_order") if early or case.begun(self.tools[at + 1 :]) else None


@dataclass(frozen=True)
class NotAfter(Rule):
    """Refuse a call once one of `after` has begun."""

    word = "not_after"
    reads_past = True
    after: Names
    reason: str | None = None

    def _check(self) -> None:
        self._checked()
        self._set("after", check_names("after", self.after))

    def judge(self, case: Case) -> Vote | None:
        """Look at what has begun."""
        begun = next((each for each in self.after if case.begun((each,))), None)
        return None if begun is None else block(self.reason or f"{case.tool}_after_{begun}")


@dataclass(frozen=True)
class FinalNeeds(Rule):
    """Refuse a final answer until each of its tools was done."""

    word = "final_needs"
    reads_past = True
    reason: str | None = None

    def _check(self) -> None:
        self._checked()

    def judge(self, case: Case) -> Vote | None:
        """Look for what must have been done."""
        lacking = next((each for each in self.tools if not case.done(each)), None)
        return None if lacking is None else block(self.reason or f"final_needs_{lacking}")


# -- fields -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Required(Rule):
    """Refuse a call in which a field is absent, null, or text with nothing to be seen in it."""

    word = "required"
    field: str
    reason: str | None = None

    def _check(self) -> None:
        self._checked()

    def judge(self, case: Case) -> Vote | None:
        """Look at the field."""
        return block(self.reason or f"{self.field}_required") if is_blank(case.value(self.field)) else None


@dataclass(frozen=True)
class FillIn(Rule):
    """Put `value` into a field that is absent, null or blank; a model may leave it out then. The call is judged again with it."""

    word = "fill_in"
    field: str
    value: Any
    reason: str | None = None

    def _check(self) -> None:
        self._checked()
        self._set("value", check_value("value", self.value))
        if is_blank(self.value):
            raise ConfigurationError(f"value={checks.show(self.value)} is nothing to fill in: give what to put in the place of nothing.")

    def judge(self, case: Case) -> Vote | None:
        """Look at the field."""
        if not is_blank(case.value(self.field)):
            return None
        return Vote(DecisionKind.REVISE, self.reason or f"{self.field}_required", (self.field, self.value))


@dataclass(frozen=True)
class _Listed(Rule):
    field: str
    values: Collection[Any]
    reason: str | None = None

    def _check(self) -> None:
        self._checked()
        given = self.values
        if not isinstance(given, (list, tuple, set, frozenset)) or not given:
            raise ConfigurationError(f"values={checks.show(given)} must be a list with at least one value in it.")
        listed = sorted(given, key=repr) if isinstance(given, (set, frozenset)) else given
        self._set("values", tuple(check_value("values", each) for each in listed))

    def _items(self, case: Case) -> list[Any] | Vote:
        value = case.value(self.field)
        if value is MISSING or value is None:
            return block(f"missing_{self.field}")
        items: list[Any] = [*value] if type(value) is list else [value]
        return block(f"invalid_{self.field}_type") if any(isinstance(each, (Mapping, list)) for each in items) else items


@dataclass(frozen=True)
class BlockValues(_Listed):
    """Refuse a call with one of `values` in a field, or in the list there.

    Texts are compared without regard to case, white space, marks and invisible characters. Where the list is in plain ASCII, a text that is
    not, which may be a look-alike of one in it, is for a person.
    """

    word = "block_values"

    def judge(self, case: Case) -> Vote | None:
        """Look the values up."""
        items = self._items(case)
        if isinstance(items, Vote):
            return items
        listed = {_looked_up(each) for each in self.values}
        if any(_looked_up(each) in listed for each in items):
            return block(self.reason or f"{self.field}_blocked")
        strange = any(not _looked_up(each).isascii() for each in items) and all(each.isascii() for each in listed)
        return Vote(DecisionKind.ESCALATE, f"{self.field}_may_be_a_look_alike") if strange else None


@dataclass(frozen=True)
class OnlyValues(_Listed):
    """Refuse a call with anything in a field, or in the list there, but `values`, exactly as they are written."""

    word = "only_values"

    def judge(self, case: Case) -> Vote | None:
        """Look the values up."""
        items = self._items(case)
        if isinstance(items, Vote):
            return items
        listed = {key_of(each) for each in self.values}
        return None if all(key_of(each) in listed for each in items) else block(self.reason or f"{self.field}_not_listed")


def _looked_up(value: Any) -> str:
    return f"text {folded(value)}" if type(value) is str else str(key_of(value))


# -- tools --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Allow(Rule):
    """Approve the calls of its tools that no other rule speaks against, whatever is the default."""

    word = "allow"
    reason: str | None = None

    def _check(self) -> None:
        self._checked()

    def judge(self, case: Case) -> Vote | None:  # noqa: ARG002 - it is about every call of its tools
        """Approve."""
        return Vote(DecisionKind.APPROVE, self.reason or "allowed")


@dataclass(frozen=True)
class ReadOnly(Allow):
    """Approve calls of tools that change nothing, as `Allow` does; `Rules.read_only` lists them for the gate."""

    word = "read_only"

    def judge(self, case: Case) -> Vote | None:  # noqa: ARG002 - it is about every call of its tools
        """Approve."""
        return Vote(DecisionKind.APPROVE, self.reason or "read_only")


@dataclass(frozen=True)
class BlockTools(Rule):
    """Refuse its tools."""

    word = "block_tools"
    reason: str | None = None

    def _check(self) -> None:
        self._checked()

    def judge(self, case: Case) -> Vote | None:
        """Refuse."""
        return block(self.reason or f"{case.tool}_blocked")


KINDS: Final[dict[str, type[Rule]]] = {
    each.word: each
    for each in (
        Cap,
        CapPerRun,
        EscalateAbove,
        MostCalls,
        NeedsFirst,
        InOrder,
        NotAfter,
        FinalNeeds,
        Required,
        FillIn,
        BlockValues,
        OnlyValues,
        Allow,
        ReadOnly,
        BlockTools,
    )
}
"""Every rule by its word in a policy file."""
