"""Define every rule, the case that rules judge, and how a policy file writes them.

A case is the arguments of a call and what was done before it, read so that nothing passes for want of a value.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from json import loads  # as it is now: the program may make tools of that module's functions
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Protocol, cast

from ravi_otel._runtime.policy_file import GateSection, load_document, read_document
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks
from ravi_otel.supervisor._decisions import DecisionKind
from ravi_otel.supervisor._json import NotPlainError, canonical, plain
from ravi_otel.supervisor.approval._request import Approvers

MISSING: Final = object()
ZERO: Final = Fraction(0)
_LONGEST_RESULT_TEXT: Final = 1 << 20
_UNSEEN: Final = frozenset("CZM")
_UNSEEN_IN_TEXT: Final = frozenset({"Cf", "Cc", "Mn"})
_BLANK_LETTERS: Final = frozenset("\u115f\u1160\u2800\u3164\uffa0")


class PastCall(Protocol):
    """A call that was let through before; `status` is "running", "ok", "error" or "cancelled"."""

    @property
    def tool(self) -> str:
        """Name its tool."""
        ...

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Return what it was called with."""
        ...

    @property
    def status(self) -> str:
        """Say how it ended."""
        ...

    @property
    def result(self) -> Any:
        """Return what came of it."""
        ...


@dataclass(frozen=True, slots=True)
class Vote:
    """What one rule says of a call; `change` puts a value into a field, of "revise" only."""

    kind: DecisionKind
    reason: str
    change: tuple[str, Any] | None = None


def block(reason: str) -> Vote:
    """Return a refusal."""
    return Vote(DecisionKind.BLOCK, reason)


class Past(Protocol):
    """What was done in a run, as rules ask about it."""

    @property
    def calls(self) -> tuple[PastCall, ...]:
        """List the calls that were let through, the first one first."""
        ...

    def begun(self, tool: str) -> int:
        """Count the calls of a tool that were let through, however they ended."""
        ...

    def spent(self, tool: str, field: str) -> Fraction | None:
        """Add up a field over the calls of a tool, None where one of them has no number there; one below zero adds nothing."""
        ...

    def done_with(self, tool: str, fields: tuple[str, ...], keys: tuple[str | None, ...]) -> bool:
        """Whether a call of a tool came to a good end and told of no error, with these `keys` (of `keys_at`) in `fields`."""
        ...


@dataclass(frozen=True, slots=True)
class ListedPast:
    """What was done in a run as a list of calls tells it: each question reads the whole list."""

    calls: tuple[PastCall, ...] = ()

    def begun(self, tool: str) -> int:
        """Count the calls of a tool."""
        return sum(call.tool == tool for call in self.calls)

    def spent(self, tool: str, field: str) -> Fraction | None:
        """Add up a field."""
        total = ZERO
        for call in self.calls:
            if call.tool == tool:
                number = exact_number(value_at(call.arguments, field))
                if number is None:
                    return None
                total += max(number, ZERO)  # an amount that was taken back makes no room for another
        return total

    def done_with(self, tool: str, fields: tuple[str, ...], keys: tuple[str | None, ...]) -> bool:
        """Look for a call that ended well."""
        return any(
            call.tool == tool and call.status == "ok" and not told_an_error(call.result) and keys_at(call.arguments, fields) == keys
            for call in self.calls
        )


@dataclass(frozen=True, slots=True)
class Case:
    """A call that is judged: its arguments as they are at this point, and what was done before it."""

    tool: str
    arguments: Mapping[str, Any]
    past: Past

    @property
    def calls(self) -> tuple[PastCall, ...]:
        """List the calls before it."""
        return self.past.calls

    def value(self, field: str) -> Any:
        """Return what is in a field, MISSING where nothing is; a dot goes into an object."""
        return value_at(self.arguments, field)

    def number(self, field: str, least: float) -> Fraction | Vote:
        """Return a number exactly, or the refusal of what is none, is not there, or is less than `least`."""
        value = self.value(field)
        if value is MISSING or value is None:
            return block(f"missing_{field}")
        number = exact_number(value)
        if number is None:
            return block(f"invalid_{field}_type")
        return number if number >= exact_limit(least) else block(f"invalid_{field}")

    def spent(self, tools: Iterable[str], field: str) -> Fraction | None:
        """Add up a field over every call of these tools that was let through; None where one of them has no number there."""
        total = ZERO
        for tool in set(tools):
            spent = self.past.spent(tool, field)
            if spent is None:
                return None
            total = total + spent if total else spent
        return total

    def begun(self, tools: Iterable[str]) -> int:
        """Count the calls of these tools that were let through, however they ended."""
        return sum(map(self.past.begun, set(tools)))

    def done(self, tool: str, same: Iterable[str] = ()) -> bool:
        """Whether a call of a tool came to a good end, with the same values in the fields of `same`.

        One that answered with an object with an "error" in it came to none.
        """
        fields = tuple(same)
        keys = keys_at(self.arguments, fields)
        return None not in keys and self.past.done_with(tool, fields, keys)


def error_in(result: object) -> object:
    """Return the "error" of a result that is an object, or the JSON text of one; None without one."""
    if isinstance(result, str) and len(result) <= _LONGEST_RESULT_TEXT and '"error"' in result:
        try:
            result = loads(result)
        except (ValueError, RecursionError):
            return None
    return cast("Mapping[str, object]", result).get("error") if isinstance(result, Mapping) else None


def told_an_error(result: object) -> bool:
    """Whether a result is an object with an "error" in it, or the JSON text of one."""
    return error_in(result) is not None


def value_at(arguments: Mapping[str, Any], field: str) -> Any:
    """Return what is at a dotted path, MISSING where nothing is."""
    here: Any = arguments
    for step in field.split("."):
        if not isinstance(here, Mapping) or step not in here:
            return MISSING
        here = cast("Mapping[str, Any]", here)[step]
    return here


def with_value(arguments: Mapping[str, Any], field: str, value: Any) -> dict[str, Any]:
    """Copy arguments with another value at a dotted path; objects on the way are made where there are none."""
    step, dot, rest = field.partition(".")
    inner = arguments.get(step)
    if dot:
        value = with_value(cast("Mapping[str, Any]", inner) if isinstance(inner, Mapping) else {}, rest, value)
    return {**arguments, step: value}


# -- values -------------------------------------------------------------------------------------------------------


def exact_number(value: object) -> Fraction | None:
    """Return a number as what it is written as, None for anything else: a truth value, text, NaN, a number's subclass."""
    if type(value) is int:
        return Fraction(value)
    return _as_written(value) if type(value) is float and math.isfinite(value) else None


@functools.lru_cache(maxsize=1024)
def _as_written(value: float) -> Fraction:
    return Fraction(repr(value))


def exact_limit(value: float) -> Fraction:
    """Return a rule's own number, which was checked when it was made."""
    number = exact_number(value)
    assert number is not None
    return number


def round_down_like(number: Fraction, like: object) -> int | float:
    """Write a number in the type of `like`, never as more than it is: whole ones are rounded down."""
    if type(like) is int:
        return math.floor(number)
    near = float(number)
    return near if Fraction(repr(near)) <= number else math.nextafter(near, -math.inf)


def key_of(value: object) -> str | None:
    """Return what two equal values have in common, None for none at all: JSON has them apart by type, but 1 and 1.0 are one number."""
    number = exact_number(value)
    if number is not None:
        return str(number)
    try:
        return None if value is MISSING or value is None else canonical(value)
    except NotPlainError:
        return None


def keys_at(arguments: Mapping[str, Any], fields: Iterable[str]) -> tuple[str | None, ...]:
    """Return the `key_of` what is in each of some fields."""
    return tuple(key_of(value_at(arguments, field)) for field in fields)


def fold_text(text: str) -> str:
    """Write text as it is looked up in a list: compatible forms, marks, case, invisible characters and white space make no difference."""
    flat = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    kept = (char for char in flat if char.isspace() or unicodedata.category(char) not in _UNSEEN_IN_TEXT)
    return " ".join("".join(kept).split())


def is_blank(value: object) -> bool:
    """Whether there is nothing, or text with nothing to be seen in it."""
    if value is MISSING or value is None:
        return True
    return type(value) is str and all(unicodedata.category(char)[0] in _UNSEEN or char in _BLANK_LETTERS for char in value)


# -- what a rule is given -----------------------------------------------------------------------------------------


def check_names(parameter: str, given: Any) -> tuple[str, ...]:
    """Accept one name or several of them, each once; raise ConfigurationError."""
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, (list, tuple, set, frozenset)) or not names:
        raise ConfigurationError(f"{parameter}={checks.show(given)} must be a name, or a list with at least one name in it.")
    listed = tuple(checks.name(parameter, each, "issue_refund") for each in cast("Iterable[object]", names))
    if len(set(listed)) != len(listed):
        raise ConfigurationError(f"{parameter}={checks.show(given)} has a name twice: keep one.")
    return tuple(sorted(listed)) if isinstance(names, (set, frozenset)) else listed


def check_field(parameter: str, given: object) -> str:
    """Accept the name of a field, with dots where it is inside an object; raise ConfigurationError."""
    named = checks.name(parameter, given, "amount_usd")
    if not all(named.split(".")):
        raise ConfigurationError(f"{parameter}={checks.show(given)} has an empty step in it: write a field such as 'order.amount_usd'.")
    return named


def check_number(parameter: str, given: Any, *, least: float | None = None) -> int | float:
    """Accept a finite number, no truth value; raise ConfigurationError."""
    number = exact_number(given)
    if number is None or (least is not None and number < exact_limit(least)):
        of = "" if least is None else f" of at least {least}"
        raise ConfigurationError(f"{parameter}={checks.show(given)} must be a number{of}, such as 1000 or 0.5.")
    return cast("int | float", given)


def check_value(parameter: str, given: object) -> Any:
    """Accept a value that JSON has; raise ConfigurationError."""
    try:
        return plain(given)
    except NotPlainError as error:
        raise ConfigurationError(f"{parameter}={checks.show(given)} {error.what}") from None


Names = str | Collection[str]
"""The name of a tool, or of several that share the rule."""


@dataclass(frozen=True)
class Rule(ABC):
    """One rule for the calls of `tool`, one name or several; `reason` is the spelling it decides with, its own unless given."""

    word: ClassVar[str]
    reads_past: ClassVar[bool] = False
    choices: ClassVar[tuple[str, ...]] = ()
    """What it may do past its bound (`otherwise`)."""
    tool: Names

    def __post_init__(self) -> None:
        self._set("tool", check_names("tool", self.tool))
        if hasattr(self, "field"):
            self._set("field", check_field("field", getattr(self, "field", None)))
        if self.choices:
            self._set("otherwise", checks.choice("otherwise", getattr(self, "otherwise", None), self.choices))
        checks.optional_name("reason", getattr(self, "reason", None))
        self._check()

    @property
    def tools(self) -> tuple[str, ...]:
        """List the tools it is about."""
        return tuple(self.tool)

    @abstractmethod
    def judge(self, case: Case) -> Vote | None:
        """Say something of a call of one of its tools, or nothing; it neither changes nor keeps anything."""

    def described(self) -> dict[str, Any]:
        """Write it as a policy file has it: every key, in plain values."""
        said: dict[str, object] = {each.name: getattr(self, each.name) for each in fields(self)}
        return {"rule": self.word} | {key: [*each] if isinstance(each, tuple) else each for key, each in said.items()}

    def fields_read(self) -> tuple[str, ...]:
        """List the fields of its tools' arguments that it reads."""
        field = getattr(self, "field", None)
        return () if field is None else (field,)

    def _check(self) -> None:  # noqa: B027 - a rule without other keys has nothing to check
        """Check its other keys; a subclass with some has its own."""

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


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
        check_number("least", self.least)
        check_number("most", self.most, least=self.least)

    def judge(self, case: Case) -> Vote | None:
        """Hold the number of one call to the cap."""
        number = case.number(self.field, self.least)
        if isinstance(number, Vote):
            return number
        most = exact_limit(self.most)
        return None if number <= most else _past_cap(self, case, most, self.reason or f"{self.field}_over_cap")


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
        return _past_cap(self, case, left, self.reason or f"{self.field}_over_run_cap")


def _past_cap(rule: Cap | CapPerRun, case: Case, most: Fraction, reason: str) -> Vote:
    """Do what a rule says of a number past its cap; one that cannot be lowered without going under `least` is refused."""
    if rule.otherwise != "revise":
        return Vote(DecisionKind(rule.otherwise), reason)
    lowered = round_down_like(most, case.value(rule.field))
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
        self._set("most", checks.count("most", self.most))

    def judge(self, case: Case) -> Vote | None:
        """Return what to do about one call more."""
        full = case.begun(self.tools) >= self.most
        return Vote(DecisionKind(self.otherwise), self.reason or f"{case.tool}_called_often_enough") if full else None


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
        self._set("value", check_value("value", self.value))
        if is_blank(self.value):
            raise ConfigurationError(f"value={checks.show(self.value)} is nothing to fill in: give what to put in the place of nothing.")

    def judge(self, case: Case) -> Vote | None:
        """Look at the field."""
        if not is_blank(case.value(self.field)):
            return None
        return Vote(DecisionKind.REVISE, self.reason or f"{self.field}_required", (self.field, self.value))


@dataclass(frozen=True)
class _ListRule(Rule):
    field: str
    values: Collection[Any]
    reason: str | None = None

    def _check(self) -> None:
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
class BlockValues(_ListRule):
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
        listed = {_lookup_key(each) for each in self.values}
        if any(_lookup_key(each) in listed for each in items):
            return block(self.reason or f"{self.field}_blocked")
        strange = any(not _lookup_key(each).isascii() for each in items) and all(each.isascii() for each in listed)
        return Vote(DecisionKind.ESCALATE, f"{self.field}_may_be_a_look_alike") if strange else None


@dataclass(frozen=True)
class OnlyValues(_ListRule):
    """Refuse a call with anything in a field, or in the list there, but `values`, exactly as they are written."""

    word = "only_values"

    def judge(self, case: Case) -> Vote | None:
        """Look the values up."""
        items = self._items(case)
        if isinstance(items, Vote):
            return items
        listed = {key_of(each) for each in self.values}
        return None if all(key_of(each) in listed for each in items) else block(self.reason or f"{self.field}_not_listed")


def _lookup_key(value: Any) -> str:
    return f"text {fold_text(value)}" if type(value) is str else str(key_of(value))


# -- tools --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Allow(Rule):
    """Approve the calls of its tools that no other rule speaks against, whatever is the default."""

    word = "allow"
    reason: str | None = None

    def judge(self, case: Case) -> Vote | None:  # noqa: ARG002 - it is about every call of its tools
        """Return an approval."""
        return Vote(DecisionKind.APPROVE, self.reason or "allowed")


@dataclass(frozen=True)
class ReadOnly(Allow):
    """Approve calls of tools that change nothing, as `Allow` does; `Rules.read_only` lists them for the gate."""

    word = "read_only"

    def judge(self, case: Case) -> Vote | None:  # noqa: ARG002 - it is about every call of its tools
        """Return an approval."""
        return Vote(DecisionKind.APPROVE, self.reason or "read_only")


@dataclass(frozen=True)
class BlockTools(Rule):
    """Refuse its tools."""

    word = "block_tools"
    reason: str | None = None

    def judge(self, case: Case) -> Vote | None:
        """Return a refusal."""
        return block(self.reason or f"{case.tool}_blocked")


RULE_KINDS: Final[dict[str, type[Rule]]] = {
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


DefaultDecision = Literal["approve", "block", "escalate"]
"""What becomes of a call on which no rule says anything."""


def read_gate_section(path: Path) -> tuple[list[Rule], DefaultDecision, Approvers]:
    """Return the rules of a policy file, its default, and who may approve.

    Raises ConfigurationError with the file, the place, the value and the way out.

    A file without a `gate` section is an error: rules that nobody wrote must not pass for rules that allow everything.
    """
    document = load_document(path)
    section = read_document(document).gate
    if section is None:
        raise ConfigurationError(f"policy file {document.shown} has no gate section: write one, with the rules that a supervisor goes by.")
    return read_rules(section), cast("DefaultDecision", section.default), _read_approvers(section)


def _read_approvers(section: GateSection) -> Approvers:
    known: Approvers = section.part.checked(Approvers.read, section.approvers, "approvers")
    return replace(known, requester_may_approve=section.requester_may_approve)


def read_rules(section: GateSection) -> list[Rule]:
    """Return the rules of a section; raise ConfigurationError with the place, the value and the way out."""
    return [_read_rule(section, index, each) for index, each in enumerate(section.rules)]


def _read_rule(section: GateSection, index: int, table: Mapping[str, Any]) -> Rule:
    place = section.part.place("rules", index)
    word = table.get("rule")
    kind = RULE_KINDS.get(word) if isinstance(word, str) else None
    if kind is None:
        raise ConfigurationError(f"{place}: {checks.unknown_choice('rule', word, RULE_KINDS)}")
    given = {key: value for key, value in table.items() if key != "rule"}
    known = {each.name: each for each in dataclasses.fields(kind)}
    section.part.only(given, tuple(known), f"rule {word}", "rules", index)
    lacking = next((name for name, each in known.items() if name not in given and each.default is dataclasses.MISSING), None)
    if lacking is not None:
        raise ConfigurationError(f"{place}: rule {word} has no {lacking}; its keys are {', '.join(known)}.")
    try:
        return kind(**given)
    except ConfigurationError as error:
        raise ConfigurationError(f"{place}: rule {word}: {error}") from None
