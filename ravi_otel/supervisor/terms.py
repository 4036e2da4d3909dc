"""Hold what a gate decides by, and read it from what the program gave."""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, Protocol, TypeAlias, cast

from ravi_otel.errors import ConfigurationError, StopRun
from ravi_otel.policy import checks
from ravi_otel.supervisor.approval.contract import Approver
from ravi_otel.supervisor.calls import Call
from ravi_otel.supervisor.decisions import GateState, Supervisor
from ravi_otel.supervisor.signatures import ToolSignature
from ravi_otel.supervisor.state import RunState

Tools: TypeAlias = Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]]
"""The tools of a gate, by name; without names they are called what their functions are."""


class Noting(Protocol):
    """Write down what happens at the gate; whatever it raises lets nothing through."""

    def note(  # noqa: D102 - the audit log's own, each by its name
        self,
        what: Any,
        *,
        run_id: str | None,
        agent_name: str | None,
        tool: str,
        op_id: str,
        arguments: Mapping[str, Any] | str | None,
        **facts: Any,
    ) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Be what a gate decides by."""

    supervisor: Supervisor | None
    approver: Approver | None
    policy: Any
    audit: Noting | None
    read_only: frozenset[str]
    expires_s: float | None
    policy_version: str | None

    def version(self) -> str:
        """Name what is decided by, as it is at this moment: an approval of another version is none."""
        if self.policy_version is not None:
            return self.policy_version
        return _hash_of(_version_of(self.supervisor), _written(self.policy))

    def policy_now(self) -> Any:
        """Copy the policy as it is at this moment: one that is changed during a review, and back, was not judged by in between.

        What cannot be copied is given as it is.
        """
        if self.policy is None:
            return None
        try:
            return copy.deepcopy(self.policy)
        except Exception:  # noqa: BLE001 - a lock or a connection in it; whatever a copy of the program's own raises
            return self.policy

    def may_lack(self, tool: str) -> Collection[str]:
        """List what the supervisor fills in when it is missing."""
        ask = getattr(self.supervisor, "may_lack", None)
        return cast("Collection[str]", ask(tool)) if callable(ask) else ()

    def note_current(self, what: str, call: Call, **facts: Any) -> None:
        """Write one line about what would run now."""
        if self.audit is not None:
            self.note(what, call, call.copy, **facts)

    def note(self, what: str, call: Call, arguments: Mapping[str, Any] | str | None, **facts: Any) -> None:
        """Write one line of the audit log, if there is one; StopRun where that cannot be done."""
        if self.audit is None:
            return
        who = call.facts
        try:
            self.audit.note(
                what, run_id=who.run_id, agent_name=who.agent_name, tool=call.tool, op_id=call.op_id, arguments=arguments, **facts
            )
        except Exception as error:
            why = f"{checks.show(call.tool)} could not be written down as {what} ({type(error).__name__}): nothing more is executed."
            raise StopRun("supervisor_block:audit_failed", why, tool=call.tool, phase=call.phase) from error


def read_tools(tools: Tools) -> dict[str, ToolSignature]:
    """Read the signatures of tools; raises ConfigurationError for two of one name and for what cannot be called."""
    if isinstance(tools, Mapping):
        return {name: ToolSignature.of(fn, name) for name, fn in cast("Mapping[str, Callable[..., Any]]", tools).items()}
    signatures: dict[str, ToolSignature] = {}
    for fn in tools:
        if not callable(fn):
            raise ConfigurationError(
                f"Gate(tools) holds {checks.show(fn)}, which cannot be called; give functions, or names with functions."
            )
        signature = ToolSignature.of(fn)
        if signature.name in signatures:
            raise ConfigurationError(
                f"Gate(tools) holds two tools called {signature.name!r}; give them as a mapping of names to functions."
            )
        signatures[signature.name] = signature
    return signatures


def read_names(parameter: str, names: Collection[str]) -> frozenset[str]:
    """Read names of tools."""
    if isinstance(names, str):
        raise ConfigurationError(f"{parameter}={checks.show(names)} is one text; give the names in a list.")
    return frozenset(checks.name(parameter, each) for each in names)


def read_ceilings(parameter: str, given: int | Mapping[str, int] | None) -> int | Mapping[str, int] | None:
    """Read how often each tool may run."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        return {checks.name(parameter, tool): checks.count(f"{parameter}[{tool!r}]", value) for tool, value in given.items()}
    return checks.count(parameter, given)


def checked(parameter: str, given: Any, protocol: type, needs: str) -> Any:
    """Accept an object with the methods of a protocol, or None."""
    if given is not None and (inspect.isclass(given) or not isinstance(given, protocol)):
        raise ConfigurationError(f"Gate({parameter}={checks.show(given)}) has not {needs}; give an object that has.")
    return given


def read_seconds(parameter: str, value: float | None) -> float | None:
    """Read a time in seconds, None for none."""
    if value is not None:
        checks.nanoseconds(parameter, value)
    return value


def state_source(given: GateState | Callable[[], GateState] | None) -> Callable[[], GateState]:
    """Give what makes the state of a run."""
    if given is None:
        return RunState
    if isinstance(given, GateState) and not inspect.isclass(given):
        shared = given
        return lambda: shared
    if callable(given):
        return given
    raise ConfigurationError(
        f"Gate(state={checks.show(given)}) is no state and makes none; give an object with begin() and end(), or a class."
    )


@functools.lru_cache(maxsize=64)
def _hash_of(*said: str) -> str:
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def _version_of(supervisor: object) -> str:
    if supervisor is None:
        return "none"
    own = getattr(supervisor, "version", None)
    name = f"{type(supervisor).__module__}.{type(supervisor).__qualname__}"
    return f"{name} {own}" if isinstance(own, str) else name


def _written(policy: object) -> str:
    """Write a policy so that another value of any of its fields is written otherwise."""
    if policy is None:
        return "null"
    if is_dataclass(policy) and not isinstance(policy, type):
        return json.dumps([type(policy).__qualname__, asdict(policy)], sort_keys=True, default=repr)
    try:
        return json.dumps(policy, sort_keys=True)
    except (TypeError, ValueError):
        return repr(policy)
