"""Put together what code, flags, environment and file say: the stronger one's word counts."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar, cast
from urllib.parse import unquote

from ravi_otel._enforcement.ledger.choosing import VARIABLE as LEDGER
from ravi_otel._enforcement.ledger.choosing import Choice as Ledger
from ravi_otel._enforcement.ledger.choosing import read_choice
from ravi_otel._pricing.book import PriceMap
from ravi_otel._runtime.config.file import CODE, FLAG, VARIABLES, GateSection, PolicyFile, Sourced, check_mode, once, parsed, read_file
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import checks
from ravi_otel.policy.grammar import parse_limit
from ravi_otel.policy.limits import OPTIONS, Admission, Kind, Limit, format_limit

MODE: Final = "RAVI_ENFORCEMENT"
ADMISSION: Final = "RAVI_ADMISSION"
WARN_AT: Final = "RAVI_WARN_AT"
POLICY: Final = "RAVI_POLICY"
PROFILE: Final = "RAVI_PROFILE"

_SERVICE: Final = "OTEL_SERVICE_NAME"
_RESOURCE: Final = "OTEL_RESOURCE_ATTRIBUTES"
_UNNAMED: Final = "default"
_LOG: Final = "RAVI_LIMIT_LOG"
"""How limits are told in the log: a variable of telemetry's, which begins as those of limits do."""
_ADMISSION: Final = OPTIONS["admission"]
_KINDS: Final = {spelling: kind for kind in Kind for spelling in (kind.value, kind.removesuffix("s"))}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Policy:
    """Be what is allowed, and say who said so.

    `limits` are those that count, the strongest source first. `prices` are USD per million tokens by model, None without
    any. `observe` tells what would be refused and refuses nothing. `warn_at` is the share at which limits that state none are
    told to be near, None for the usual one. `sources` says where `name`, `tags`, `prices`, `enforcement`, `admission`, `warn_at`,
    `gate`, `profile` and `ledger` came from; what nobody set is not in it. Of a `gate` only the shape is read.
    """

    limits: tuple[Sourced, ...] = ()
    prices: PriceMap | None = None
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    name: str | None = None
    observe: bool = False
    admission: Admission = Admission.ESTIMATE
    warn_at: float | None = None
    profile: str | None = None
    ledger: Ledger | None = None
    gate: GateSection | None = None
    sources: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def values(self) -> tuple[Limit, ...]:
        """Return the limits alone, as `Opening(limits=...)` takes them."""
        return tuple(each.limit for each in self.limits)

    @property
    def origins(self) -> dict[int, str]:
        """Return for each limit's place in `values` what a refusal tells its reader to change, as `Opening(origins=...)` takes it."""
        return {index: each.origin for index, each in enumerate(self.limits)}


def effective(
    *,
    flags: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
    file: Path | None = None,
    profile: str | None = None,
    code: Iterable[Limit | str] = (),
    observe: bool = False,
    admission: str | None = None,
    asked_by: str = "--profile",
) -> Policy:
    """Read all sources and give what counts: code before `--limit`, before `RAVI_LIMIT_…` variables, before the policy file.

    Without `file` the one that `RAVI_POLICY` names is read, and without `profile` the one that `RAVI_PROFILE` names is taken; a
    profile goes before the rest of its file. `observe` and `admission` are those flags. A limit replaces the weaker ones on the
    same scope, scope's name, kind, tool, agent and window; others stand beside it. Two for the same thing in one source are an
    error. Raises ConfigurationError, one sentence with source and value; `asked_by` is what it calls the `profile`.
    """
    files, chosen = _files(environ, file, profile, asked_by)
    mode = _first(("observe" if observe else None, "--observe"), _said(environ, MODE, check_mode), *_in(files, "enforcement"))
    given = _ADMISSION.read(admission, "--admission")
    held = _first((given, "--admission"), _said(environ, ADMISSION, _ADMISSION.check), *_in(files, "admission"))
    near = _first(_said(environ, WARN_AT, _warn_at), *_in(files, "warn_at"))
    name = _first(*_in(files, "name"))
    ledger = _first(_said(environ, LEDGER, read_choice))
    sources = {"enforcement": mode[1], "admission": held[1], "warn_at": near[1], "name": name[1], "ledger": ledger[1]}
    sources |= {key: _all_in(files, key) for key in ("tags", "prices", "gate")} | {"profile": chosen[1]}
    strongest_first = (from_code(code), from_flags(flags), from_environment(environ), *(said.limits for said in files))
    weakest_first = tuple(reversed(files))
    return Policy(
        limits=_merged(strongest_first),
        prices={model: lines for said in weakest_first for model, lines in (said.prices or {}).items()} or None,
        tags=checks.tags("tags", {key: text for said in weakest_first for key, text in said.tags.items()}),
        name=name[0],
        observe=mode[0] == "observe",
        admission=held[0] or Admission.ESTIMATE,
        warn_at=near[0],
        profile=chosen[0],
        ledger=ledger[0],
        gate=next((said.gate for said in files if said.gate is not None), None),
        sources={key: source for key, source in sources.items() if source},
    )


def with_ledger(policy: Policy, flag: str | None) -> Policy:
    """Put in the ledger that `--ledger` names, which goes before the environment's; ConfigurationError for what names none."""
    if flag is None:
        return policy
    return replace(policy, ledger=read_choice("--ledger", flag), sources={**policy.sources, "ledger": "--ledger"})


def _files(
    environ: Mapping[str, str], file: Path | None, profile: str | None, asked_by: str
) -> tuple[tuple[PolicyFile, ...], _Stated[str]]:
    """Return the chosen profile, if any, and the file it is in; and the profile's name with who asked for it."""
    named = environ.get(POLICY, "").strip()
    path = file or (Path(named) if named else None)
    asked, by = _first((profile, asked_by), (environ.get(PROFILE, "").strip() or None, PROFILE))
    if path is None:
        if asked is not None:
            raise ConfigurationError(
                f"{by}={checks.show(asked)} chooses a profile, and there is no policy file: name one with --policy, {POLICY} or "
                "instrument(policy=...), or leave the profile out."
            )
        return (), (None, "")
    said = read_file(path)
    if asked is None:
        return (said,), (None, "")
    return (said.profile(asked, by), said), (asked, by)


_Stated: TypeAlias = tuple[T | None, str]
"""What a source says, None where it says nothing, and what that source is called."""


def _first(*stated: _Stated[T]) -> _Stated[T]:
    return next((each for each in stated if each[0] is not None), (None, ""))


def _said(environ: Mapping[str, str], variable: str, check: Callable[[str, Any], T]) -> _Stated[T]:
    written = environ.get(variable, "").strip()
    return (check(variable, written) if written else None), variable


def _in(files: tuple[PolicyFile, ...], key: str) -> list[_Stated[Any]]:
    return [(getattr(said, key), said.shown) for said in files]


def _all_in(files: tuple[PolicyFile, ...], key: str) -> str:
    return ", ".join(said.shown for said in files if getattr(said, key))


def _warn_at(variable: str, written: str) -> Any:
    check = OPTIONS["warn_at"].check
    try:
        return check(variable, float(written))
    except (ValueError, ConfigurationError):
        return check(variable, written)  # as it was typed


def _merged(strongest_first: Iterable[Iterable[Sourced]]) -> tuple[Sourced, ...]:
    counted: dict[Hashable, Sourced] = {}
    for source in strongest_first:
        for key, each in once(source).items():
            stronger = counted.get(key)
            counted[key] = each if stronger is None else replace(stronger, instead_of=(*stronger.instead_of, each))
    return tuple(counted.values())


# -- what code, flags and environment say --------------------------------------------------------------------------------


def from_code(limits: Iterable[Limit | str]) -> list[Sourced]:
    """Read what a program gives."""
    return [_from_code(limit) for limit in _listed(CODE, limits)]


def _from_code(limit: Any) -> Sourced:
    if isinstance(limit, Limit):
        return Sourced(limit, format_limit(limit), CODE)
    return Sourced(parse_limit(limit), limit, CODE)


def from_flags(flags: Sequence[str]) -> list[Sourced]:
    """Read the values of `--limit`; LimitSyntaxError names the flag and its value."""
    return [Sourced(parsed(FLAG, flag), flag.strip(), FLAG) for flag in _listed(FLAG, flags)]


def from_environment(environ: Mapping[str, str]) -> list[Sourced]:
    """Read `RAVI_LIMIT_TOKENS=500k` and its sisters, by name; an unknown one is an error that lists the kinds."""
    found: list[Sourced] = []
    for name in sorted(environ):
        if not name.startswith(VARIABLES) or name == _LOG:
            continue
        kind = _KINDS.get(name.removeprefix(VARIABLES).lower())
        if kind is None:
            raise ConfigurationError(_unknown(name))
        spec = f"{kind}={environ[name].strip()}"
        found.append(Sourced(parsed(name, spec), spec, name))
    return found


def _unknown(name: str) -> str:
    known = [f"{VARIABLES}{kind.upper()}" for kind in Kind]
    close = checks.nearest(name.removeprefix(VARIABLES), _KINDS)
    hint = f", did you mean {VARIABLES}{_KINDS[close].upper()}" if close else ""
    return (
        f"variable {checks.show(name)} names no kind of limit{hint}; the kinds are {', '.join(known)}. "
        "A limit with a scope, an agent or a tool in it goes into --limit or a policy file."
    )


def _listed(source: str, limits: Any) -> Iterable[Any]:
    if isinstance(limits, (str, Limit, Mapping)) or not isinstance(limits, Iterable):
        raise ConfigurationError(
            f'the limits of {source} are {checks.show(cast("object", limits))}, which is no list: give one such as ["tokens=500k"].'
        )
    return limits  # pyright: ignore[reportUnknownVariableType]  # whatever a program gives; each of them is read


def read_tags(pairs: Sequence[str], parameter: str = "--tag") -> dict[str, str]:
    """Read `team=search` pairs, as a command line gives them; a key that is there twice is an error."""
    tags: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigurationError(f"{parameter} {checks.show(pair)} has no '=': write {parameter} team=search.")
        if key in tags:
            raise ConfigurationError(
                f"{parameter} {checks.show(pair)} is there twice: {parameter} {checks.show(f'{key}={tags[key]}')} sets the same key."
            )
        tags[key] = value
    return checks.tags(parameter, tags)


def service_in(environ: Mapping[str, str]) -> str:
    """Name the service that OpenTelemetry's variables name."""
    named = environ.get(_SERVICE, "").strip() or _attribute_in(environ.get(_RESOURCE, ""))
    return _UNNAMED if checks.flaw_of_name(named) else named


def _attribute_in(attributes: str) -> str:
    """Read the service's name out of a list such as `service.name=shop,team=a`, percent-encoded; empty without one."""
    for pair in attributes.split(","):
        key, _, value = pair.partition("=")
        if key.strip() == "service.name":
            return unquote(value.strip())
    return ""
