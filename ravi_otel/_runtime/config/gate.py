"""Read the gate's section of a policy file: its shape, and where each rule stands; what a rule says is the supervisor's to read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from ravi_otel._runtime.config.entries import Part
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import checks

GATE_KEYS: Final = ("default", "rules")
MOST_RULES: Final = 1_000


@dataclass(frozen=True, slots=True)
class GateSection:
    """Be what a policy file says of the gate; `default` is "approve" where it says nothing."""

    part: Part
    default: str
    rules: tuple[Mapping[str, Any], ...]

    def checked(self, check: Any, value: object, *steps: str | int) -> Any:
        """Check a value; the error begins with where it stands."""
        return self.part.checked(check, self.part.named("gate", *steps), value, "gate", *steps)

    def place(self, *steps: str | int) -> str:
        """Say where something in the section stands."""
        return self.part.place("gate", *steps)

    def only(self, given: Mapping[str, object], known: tuple[str, ...], whose: str, *steps: str | int) -> None:
        """Refuse a key that is none of the known ones."""
        self.part.only(given, known, whose, "gate", *steps)


def read_gate(part: Part, given: object) -> GateSection:
    """Read the section as any reader of the file does: a default in words, and tables, each with the word of its rule."""
    table = part.table(given, '{default: "escalate", rules: []}', "gate")
    part.only(table, GATE_KEYS, "the gate", "gate")
    said = table.get("default")
    default = part.checked(_word, part.named("gate", "default"), "approve" if said is None else said, "gate", "default")
    return GateSection(part, default, tuple(_rule(part, index, each) for index, each in enumerate(_listed(part, table.get("rules")))))


def _listed(part: Part, given: object) -> list[object]:
    if given is None:
        return []
    shown = checks.show(given)
    rules = cast("list[object]", given) if isinstance(given, list) else None
    if rules is None or len(rules) > MOST_RULES:
        at, named = part.at("gate", "rules"), part.named("gate", "rules")
        raise ConfigurationError(f"{at}: {named} is {shown}: write a list of at most {MOST_RULES} tables.")
    return rules


def _rule(part: Part, index: int, given: object) -> Mapping[str, Any]:
    table = part.table(given, '{rule: "allow", tool: "search"}', "gate", "rules", index)
    word = table.get("rule")
    if not isinstance(word, str):
        what = "has no rule" if word is None else f"has the rule {checks.show(word)}"
        way_out = part.line('rule = "allow"')
        raise ConfigurationError(f"{part.place('gate', 'rules', index)}: {what}; write a word such as {way_out}.")
    return table


def _word(parameter: str, value: object) -> str:
    return checks.choice(parameter, value, ("approve", "block", "escalate"))
