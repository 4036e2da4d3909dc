"""Put together what code, flags, environment and file say: the stronger one's word counts."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from ravi_otel.enforcement.engine import Engine
from ravi_otel.enforcement.opening import Opening, close_scope, open_scope, process_root
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import checks
from ravi_otel.policy.limits import Admission, Limit, ScopeKind
from ravi_otel.pricing.overrides import PriceMap
from ravi_otel.runtime.config.file import PolicyFile, check_mode, read_file
from ravi_otel.runtime.config.sources import Sourced, from_code, from_environment, from_flags, once

MODE: Final = "RAVI_ENFORCEMENT"
DEFAULT: Final = "default"


@dataclass(frozen=True, slots=True)
class Policy:
    """Be what is allowed, and say who said so.

    `limits` are those that count, the strongest source first. `prices` are USD per million tokens by model, None without
    any. `observe` tells what would be refused and refuses nothing. `sources` says where `name`, `tags`, `prices`,
    `enforcement` and `admission` came from; what nobody set is not in it.
    """

    limits: tuple[Sourced, ...] = ()
    prices: PriceMap | None = None
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    name: str | None = None
    observe: bool = False
    admission: Admission = Admission.ESTIMATE
    sources: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def values(self) -> tuple[Limit, ...]:
        """Give the limits alone, as `Opening(limits=...)` takes them."""
        return tuple(each.limit for each in self.limits)

    @property
    def origins(self) -> dict[int, str]:
        """Give for each limit's place in `values` what a refusal tells its reader to change, as `Opening(origins=...)` takes it."""
        return {index: each.origin for index, each in enumerate(self.limits)}


def effective(
    *,
    flags: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
    file: Path | None = None,
    code: Iterable[Limit | str] = (),
) -> Policy:
    """Read all sources and give what counts: code before `--limit`, before `RAVI_LIMIT_…` variables, before the policy file.

    A limit replaces the weaker ones on the same scope, scope's name, kind, tool, agent and window; others stand beside
    it. Two for the same thing in one source are an error. Raises ConfigurationError, one sentence with source and value.
    """
    said = PolicyFile("") if file is None else read_file(file)
    strongest_first = (from_code(code), from_flags(flags), from_environment(environ), said.limits)
    mode, mode_source = _mode(environ, said)
    sources = {key: said.shown for key in ("name", "tags", "prices", "admission") if getattr(said, key)}
    return Policy(
        limits=_merged(strongest_first),
        prices=said.prices,
        tags=said.tags,
        name=said.name,
        observe=mode == "observe",
        admission=said.admission or Admission.ESTIMATE,
        sources=sources | ({} if mode_source is None else {"enforcement": mode_source}),
    )


def _merged(strongest_first: Iterable[Iterable[Sourced]]) -> tuple[Sourced, ...]:
    counted: dict[Hashable, Sourced] = {}
    for source in strongest_first:
        for key, each in once(source).items():
            stronger = counted.get(key)
            counted[key] = each if stronger is None else replace(stronger, instead_of=(*stronger.instead_of, each))
    return tuple(counted.values())


def _mode(environ: Mapping[str, str], said: PolicyFile) -> tuple[str, str | None]:
    written = environ.get(MODE, "").strip()
    if written:
        return check_mode(MODE, written), MODE
    return said.enforcement or "enforce", said.shown if said.enforcement else None


def check_for_run(policy: Policy) -> None:
    """Check that `ravi-otel run` can hold a whole program to these limits, before anything is started.

    A limit without a scope, or of `run` or `session`, is the program's own; `agent.`, `block.` and `handoff.` are for
    what it opens inside. Raises ConfigurationError for `tenant.`, and for what this version cannot do.
    """
    engine = Engine()
    root = process_root(engine)
    for each in policy.limits:
        if each.limit.scope is ScopeKind.TENANT:
            raise ConfigurationError(
                f"limit {checks.show(each.spec)} of {each.source} belongs to a tenant, and a program that is run has none: "
                "write session. in front, or leave the prefix out."
            )
        try:
            ask = Opening(kind=ScopeKind.RUN, name="run", session_id="run", limits=(each.limit,))
            close_scope(open_scope(engine, root, ask), None)
        except ConfigurationError as error:
            raise ConfigurationError(f"{each.source}: {error}") from None
