"""Read limits where they are written by themselves: in code, in `--limit`, in `RAVI_LIMIT_…` variables."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from ravi_otel._telemetry.conventions import LIMIT_LOG
from ravi_otel.errors import ConfigurationError, LimitSyntaxError
from ravi_otel.policy import checks
from ravi_otel.policy.grammar import parse_limit
from ravi_otel.policy.limits import Kind, Limit, format_limit

CODE: Final = "code"
FLAG: Final = "--limit"
VARIABLES: Final = "RAVI_LIMIT_"

_KINDS: Final = {spelling: kind for kind in Kind for spelling in (kind.value, kind.removesuffix("s"))}


@dataclass(frozen=True, slots=True)
class Sourced:
    """Be a limit, and say where it came from.

    `spec` is the limit as the grammar writes it. `source` is `code`, `--limit`, the variable's name, or the file and
    the key, `policy.toml limits[2]`, counted from 0; of a YAML file the line, `policy.yaml:3`. `instead_of` are the
    limits of weaker sources it replaced, the strongest first.
    """

    limit: Limit
    spec: str
    source: str
    instead_of: tuple[Sourced, ...] = ()

    @property
    def key(self) -> Hashable:
        """Give what two limits must share for one to replace the other."""
        return self.limit.target

    @property
    def origin(self) -> str:
        """Say for the sentence of a refusal what its reader has to change: `--limit requests=3`, `RAVI_LIMIT_COST=2.5usd`."""
        if self.source == CODE:
            return self.spec
        if self.source == FLAG:
            return f"{FLAG} {self.spec}"
        if self.source.startswith(VARIABLES):
            return f"{self.source}={self.spec.partition('=')[2]}"
        return f"{self.spec} in {self.source}"


def from_code(limits: Iterable[Limit | str]) -> list[Sourced]:
    """Read what a program gives."""
    return [_from_code(limit) for limit in _listed(CODE, limits)]


def _from_code(limit: Any) -> Sourced:
    if isinstance(limit, Limit):
        return Sourced(limit, format_limit(limit), CODE)
    return Sourced(parse_limit(limit), limit, CODE)


def from_flags(flags: Sequence[str]) -> list[Sourced]:
    """Read the values of `--limit`; LimitSyntaxError names the flag and its value."""
    return [Sourced(_parsed(f"{FLAG}: ", flag), flag.strip(), FLAG) for flag in _listed(FLAG, flags)]


def from_environment(environ: Mapping[str, str]) -> list[Sourced]:
    """Read `RAVI_LIMIT_TOKENS=500k` and its sisters, by name; an unknown one is an error that lists the kinds."""
    found: list[Sourced] = []
    for name in sorted(environ):
        if not name.startswith(VARIABLES) or name == LIMIT_LOG:
            continue
        kind = _KINDS.get(name.removeprefix(VARIABLES).lower())
        if kind is None:
            raise ConfigurationError(_unknown(name))
        spec = f"{kind}={environ[name].strip()}"
        found.append(Sourced(_parsed(f"{name}: ", spec), spec, name))
    return found


def _unknown(name: str) -> str:
    known = [f"{VARIABLES}{kind.upper()}" for kind in Kind]
    close = checks.nearest(name.removeprefix(VARIABLES), _KINDS)
    hint = f", did you mean {VARIABLES}{_KINDS[close].upper()}" if close else ""
    return (
        f"variable {checks.show(name)} names no kind of limit{hint}; the kinds are {', '.join(known)}. "
        "A limit with a scope, an agent or a tool in it goes into --limit or a policy file."
    )


def located(place: str, spec: str) -> Limit:
    """Read one limit of a file; the error begins with where it stands."""
    return _parsed(f"{place}: ", spec)


def _parsed(prefix: str, spec: Any) -> Limit:
    try:
        return parse_limit(spec)
    except LimitSyntaxError as error:
        raise LimitSyntaxError(f"{prefix}{error}", spec=error.spec) from None


def _listed(source: str, limits: Any) -> Iterable[Any]:
    if isinstance(limits, (str, Limit, Mapping)) or not isinstance(limits, Iterable):
        raise ConfigurationError(
            f'the limits of {source} are {checks.show(cast("object", limits))}, which is no list: give one such as ["tokens=500k"].'
        )
    return limits  # pyright: ignore[reportUnknownVariableType]  # whatever a program gives; each of them is read


def once(limits: Iterable[Sourced]) -> dict[Hashable, Sourced]:
    """Arrange the limits of one source by what they limit; two for the same thing are an error that names both."""
    kept: dict[Hashable, Sourced] = {}
    for each in limits:
        other = kept.setdefault(each.key, each)
        if other is not each:
            raise ConfigurationError(f"{_written(each)} is there twice: {_written(other)} sets the same limit. Keep one of them.")
    return kept


def _written(each: Sourced) -> str:
    if each.source in (CODE, FLAG):
        return f"{each.source} {checks.show(each.spec)}"
    if each.source.startswith(VARIABLES):
        return f"{each.source}={checks.show(each.spec.partition('=')[2])}"
    return f"{checks.show(each.spec)} at {each.source}"
