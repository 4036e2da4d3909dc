"""Read the rules of a policy file: its `gate` section, each rule a table with its word and its keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

from ravi_otel._runtime.policy_file import GateSection, load_document, read_document
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks
from ravi_otel.supervisor.approval.approvers import Approvers
from ravi_otel.supervisor.rules_contract import Rule
from ravi_otel.supervisor.rules_kinds import KINDS

Default = Literal["approve", "block", "escalate"]
"""What becomes of a call on which no rule says anything."""


def read_gate(path: Path) -> tuple[list[Rule], Default, Approvers]:
    """Give the rules of a policy file, its default, and who may approve.

    Raises ConfigurationError with the file, the place, the value and the way out.

    A file without a `gate` section is an error: rules that nobody wrote must not pass for rules that allow everything.
    """
    document = load_document(path)
    section = read_document(document).gate
    if section is None:
        raise ConfigurationError(f"policy file {document.shown} has no gate section: write one, with the rules that a supervisor goes by.")
    return read_rules(section), cast("Default", section.default), _approvers(section)


def _approvers(section: GateSection) -> Approvers:
    known: Approvers = section.part.checked(Approvers.read, section.approvers, "approvers")
    return replace(known, requester_may_approve=section.requester_may_approve)


def read_rules(section: GateSection) -> list[Rule]:
    """Return the rules of a section; raise ConfigurationError with the place, the value and the way out."""
    return [_rule(section, index, each) for index, each in enumerate(section.rules)]


def _rule(section: GateSection, index: int, table: Mapping[str, Any]) -> Rule:
    place = section.part.place("rules", index)
    word = table.get("rule")
    kind = KINDS.get(word) if isinstance(word, str) else None
    if kind is None:
        raise ConfigurationError(f"{place}: {checks.unknown_choice('rule', word, KINDS)}")
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
