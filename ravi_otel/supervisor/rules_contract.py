"""Say what a rule is: frozen, checked where it is made, written as a policy file has it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from ravi_otel.policy import _checks as checks
from ravi_otel.supervisor.rules_reading import Case, Vote, check_field, check_names

Names = str | Collection[str]
"""The name of a tool, or of several that share the rule."""


@dataclass(frozen=True)
class Rule(ABC):
    """Be one rule for the calls of `tool`, one name or several; `reason` is the spelling it decides with, its own unless given."""

    word: ClassVar[str]
    reads_past: ClassVar[bool] = False
    choices: ClassVar[tuple[str, ...]] = ()
    """What it may do past its bound (`otherwise`)."""
    tool: Names

    def __post_init__(self) -> None:
        self._set("tool", check_names("tool", self.tool))
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

    def _checked(self) -> None:
        """Check the keys that several rules have."""
        if hasattr(self, "field"):
            self._set("field", check_field("field", getattr(self, "field", None)))
        if self.choices:
            self._set("otherwise", checks.choice("otherwise", getattr(self, "otherwise", None), self.choices))
        checks.optional_name("reason", getattr(self, "reason", None))
