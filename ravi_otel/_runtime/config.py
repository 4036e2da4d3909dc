"""Know which limits count: in code, on the command line, in the environment and in a policy file, in this order.

A policy file is TOML, or YAML with the extra `yaml`::

    name = "nightly"
    enforcement = "enforce"                       # or "observe"
    limits = ["tokens=500k", "cost=2.50usd:warn=0.5", "session.requests=500"]

    [agents]
    researcher = ["tokens=50k", "turns=20"]       # of every agent of that name

    [tools]
    search = 5                                    # tool.search=5

    [tags]
    team = "search"

    [prices.my-model]                             # USD per million tokens
    input = 2.5
    output = 10

    [gate]                                        # of `Rules.from_file`, which makes a supervisor of it
    default = "escalate"
    rules = [{ rule = "allow", tool = "search" }]

    [profiles.ci]                                 # chosen by name; goes before the rest of the file
    limits = ["cost=0.50usd"]

A limit may be a table too, with the keywords of the constructors: `kind`, `value`, `tool`, `agent`, `scope`, `name`,
`warn_at`, `on_exceed` and so on. `policy.schema.json` beside this module says all of it to an editor.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import unquote

from ravi_otel._enforcement.ledger.choosing import VARIABLE as LEDGER
from ravi_otel._enforcement.ledger.choosing import Choice as Ledger
from ravi_otel._enforcement.ledger.choosing import read_choice
from ravi_otel._pricing.book import PriceMap
from ravi_otel._runtime.policy_file import (
    CODE,
    FLAG,
    VARIABLES,
    GateSection,
    PolicyFile,
    Sourced,
    check_mode,
    once,
    parsed,
    read_file,
)
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._grammar import parse_limit
from ravi_otel.policy._limits import OPTIONS, Admission, Kind, Limit, format_limit

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
    files, chosen, by = _files(environ, file, profile, asked_by)
    flagged = {"enforcement": "observe" if observe else None, "admission": _ADMISSION.read(admission, "--admission")}
    flag_names = {"enforcement": "--observe", "admission": "--admission"}
    sources = {} if chosen is None else {"profile": by}
    first: dict[str, Any] = {}
    for key in ("enforcement", "admission", "warn_at", "ledger", "name"):
        stated = [(flagged.get(key), flag_names.get(key, ""))]
        if key in _VARIABLES:
            variable, check = _VARIABLES[key]
            written = environ.get(variable, "").strip()
            stated.append((check(variable, written) if written else None, variable))
        stated += [(getattr(said, key, None), said.shown) for said in files]
        first[key], source = next((each for each in stated if each[0] is not None), (None, ""))
        if source:
            sources[key] = source
    for key in ("tags", "prices", "gate"):
        source = ", ".join(said.shown for said in files if getattr(said, key))
        if source:
            sources[key] = source
    weakest_first = tuple(reversed(files))
    return Policy(
        limits=_merged((from_code(code), from_flags(flags), from_environment(environ), *(said.limits for said in files))),
        prices={model: lines for said in weakest_first for model, lines in (said.prices or {}).items()} or None,
        tags=checks.tags("tags", {key: text for said in weakest_first for key, text in said.tags.items()}),
        name=first["name"],
        observe=first["enforcement"] == "observe",
        admission=first["admission"] or Admission.ESTIMATE,
        warn_at=first["warn_at"],
        profile=chosen,
        ledger=first["ledger"],
        gate=next((said.gate for said in files if said.gate is not None), None),
        sources=sources,
    )


def with_ledger(policy: Policy, flag: str | None) -> Policy:
    """Put in the ledger that `--ledger` names, which goes before the environment's; ConfigurationError for what names none."""
    if flag is None:
        return policy
    return replace(policy, ledger=read_choice("--ledger", flag), sources={**policy.sources, "ledger": "--ledger"})


def _files(
    environ: Mapping[str, str], file: Path | None, profile: str | None, asked_by: str
) -> tuple[tuple[PolicyFile, ...], str | None, str]:
    """Return the chosen profile, if any, and the file it is in; and the profile's name with who asked for it."""
    named = environ.get(POLICY, "").strip()
    path = file or (Path(named) if named else None)
    by = PROFILE if profile is None else asked_by
    asked = (environ.get(PROFILE, "").strip() or None) if profile is None else profile
    if path is not None:
        said = read_file(path)
        return (said,) if asked is None else (said.profile(asked, by), said), asked, by
    if asked is not None:
        raise ConfigurationError(
            f"{by}={checks.show(asked)} chooses a profile, and there is no policy file: name one with --policy, {POLICY} or "
            "instrument(policy=...), or leave the profile out."
        )
    return (), None, by


def _warn_at(variable: str, written: str) -> Any:
    check = OPTIONS["warn_at"].check
    try:
        return check(variable, float(written))
    except (ValueError, ConfigurationError):
        return check(variable, written)  # as it was typed


_VARIABLES: Final[Mapping[str, tuple[str, Callable[[str, Any], Any]]]] = {
    "enforcement": (MODE, check_mode),
    "admission": (ADMISSION, _ADMISSION.check),
    "warn_at": (WARN_AT, _warn_at),
    "ledger": (LEDGER, read_choice),
}
"""What the environment may say of each setting, and how it is read; the others are for flags and files alone."""


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
    return [
        Sourced(limit, format_limit(limit), CODE) if isinstance(limit, Limit) else Sourced(parse_limit(limit), limit, CODE)
        for limit in _listed(CODE, limits)
    ]


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
