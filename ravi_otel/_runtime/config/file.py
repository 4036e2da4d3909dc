"""Read a policy file: the limits, names, tags, prices and profiles in it, each checked where it stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from ravi_otel._pricing.overrides import Overrides, PriceMap
from ravi_otel._runtime.config.document import Document, load_document
from ravi_otel._runtime.config.entries import Part, check_admission, only, read_agents, read_limits, read_tools
from ravi_otel._runtime.config.gate import GateSection, read_gate
from ravi_otel._runtime.config.schema import check_schema
from ravi_otel._runtime.config.sources import Sourced, once
from ravi_otel._runtime.config.tags import check_tags
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import checks
from ravi_otel.policy.limits import Admission

MODES: Final = ("enforce", "observe")


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """Be what a policy file, or one of its profiles, says; None is what it does not say."""

    shown: str
    limits: tuple[Sourced, ...] = ()
    name: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    prices: PriceMap | None = None
    enforcement: str | None = None
    admission: Admission | None = None
    warn_at: float | None = None
    gate: GateSection | None = None
    profiles: Mapping[str, PolicyFile] = field(default_factory=dict[str, "PolicyFile"])

    def profile(self, name: str, asked_by: str) -> PolicyFile:
        """Give one of its profiles; ConfigurationError lists those there are, and names who asked."""
        found = self.profiles.get(name)
        if found is None:
            close = checks.nearest(name, self.profiles)
            hint = f", did you mean {close!r}" if close else ""
            there = ", ".join(map(checks.show, self.profiles)) or "none"
            raise ConfigurationError(f"{asked_by}={checks.show(name)} is no profile of {self.shown}{hint}; its profiles are {there}.")
        return found


def read_file(path: Path) -> PolicyFile:
    """Read a policy file with all its profiles; raises ConfigurationError naming the file, the key, the value and the way out."""
    document = load_document(path)
    said = read_document(document)
    check_schema(document)
    return said


def read_document(document: Document) -> PolicyFile:
    """Read what is in a policy file, by the rules that no schema can say too."""
    only(document.shown, document.content, FILE_KEYS, "a policy file")
    return _read(Part(document), document.content, document.shown)


def _read(part: Part, content: Mapping[str, object], shown: str) -> PolicyFile:
    fields = {key: _READERS[key](part, value) for key, value in content.items() if value is not None}
    limits = tuple(each for key in _LISTS for each in fields.pop(key, ()))
    once(limits)  # two for the same thing are an error in a profile that is not chosen, too
    return PolicyFile(shown, limits, **fields)


def _profiles(part: Part, given: object) -> dict[str, PolicyFile]:
    found: dict[str, PolicyFile] = {}
    for name, content in part.table(given, '{ci: {limits: ["tokens=50k"]}}', "profiles").items():
        table = part.table(content, "{} for one that changes nothing", "profiles", name)
        part.only(table, PROFILE_KEYS, "a profile", "profiles", name)
        found[name] = _read(Part(part.document, ("profiles", name)), table, f"{part.document.shown} (profile {name})")
    return found


Check: TypeAlias = Callable[[str, Any], Any]
Reader: TypeAlias = Callable[[Part, Any], Any]


def _checked(key: str, check: Check) -> Reader:
    return lambda part, given: part.checked(check, part.named(key), given, key)


def check_mode(parameter: str, value: object) -> str:
    """Accept "enforce" or "observe"."""
    return checks.choice(parameter, value, MODES)


def _mode(parameter: str, value: object) -> str:
    if isinstance(value, bool):  # what YAML makes of on, off, yes and no
        raise ConfigurationError(
            f"{parameter} is {'on' if value else 'off'}, a switch: give 'observe', which refuses nothing, or 'enforce'."
        )
    return check_mode(parameter, value)


def _run_name(parameter: str, value: object) -> str:
    return checks.name(parameter, value, "nightly")


def _prices(_: str, value: Any) -> Any:
    Overrides(value)
    return value


_LISTS: Final = ("limits", "agents", "tools")
_READERS: Final[dict[str, Reader]] = {
    "limits": lambda part, given: read_limits(part, given, "limits"),
    "name": _checked("name", _run_name),
    "tags": _checked("tags", check_tags),
    "prices": _checked("prices", _prices),
    "enforcement": _checked("enforcement", _mode),
    "admission": _checked("admission", check_admission),
    "warn_at": _checked("warn_at", checks.share),
    "agents": read_agents,
    "tools": read_tools,
    "gate": read_gate,
    "profiles": _profiles,
}
FILE_KEYS: Final = tuple(_READERS)
PROFILE_KEYS: Final = tuple(key for key in FILE_KEYS if key not in ("gate", "profiles"))
