"""Choose which functions of a target become tools, by their names."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import checks

LEFT_OUT: Final = "left out as asked"


@dataclass(frozen=True, slots=True)
class Choice:
    """Say which names are left as they are: those of `skip`, or all but those of `only`."""

    skip: frozenset[str] = frozenset()
    only: frozenset[str] | None = None

    def leaves(self, name: str) -> bool:
        """Tell that a function is to be left as it is."""
        return name in self.skip or (self.only is not None and name not in self.only)

    def check(self, known: Collection[str]) -> None:
        """Refuse a name that is none of the target's: it would be a tool against the program's word, or none."""
        for parameter, names in (("skip", self.skip), ("only", self.only or ())):
            for name in sorted(names):
                if name not in known:
                    close = checks.nearest(name, known)
                    hint = f", did you mean {close!r}" if close else ""
                    raise ConfigurationError(
                        f"instrument_tools({parameter}=...) names {checks.show(name)}, which there is not{hint}; "
                        f"there are {', '.join(known) or 'none'}."[:600]
                    )


def read_choice(skip: Collection[str], only: Collection[str] | None) -> Choice | None:
    """Accept what is to be left out; None where nothing is."""
    if only is not None and skip:
        raise ConfigurationError("instrument_tools(skip=..., only=...) says it twice; give one of the two.")
    if only is None and not skip:
        return None
    return Choice(_names("skip", skip), None if only is None else _names("only", only))


def _names(parameter: str, names: Collection[str]) -> frozenset[str]:
    if isinstance(names, str) or not isinstance(names, Collection):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
        raise ConfigurationError(f"instrument_tools({parameter}={checks.show(names)}) takes a list of names.")
    return frozenset(checks.name(f"instrument_tools({parameter})", each) for each in names)
