"""Run a program under a plan: prepare, start, wait, and judge how it ended."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, cast

from ravi_otel._enforcement.errors_text import named
from ravi_otel._enforcement.ledger.choosing import LEASE, lease_of
from ravi_otel._extras import load
from ravi_otel._launch import target
from ravi_otel._launch.plan import SITE, VARIABLE, Counters, Place, Plan, places_of, spell
from ravi_otel._launch.process import Ended, Program, occupy_standard_descriptors
from ravi_otel._local.prune import Upkeep
from ravi_otel._local.store import Launch as Kept
from ravi_otel._local.store import Outcome, Store
from ravi_otel._runtime.config import Policy, service_in
from ravi_otel._version import __version__
from ravi_otel.errors import ConfigurationError, RaviError
from ravi_otel.policy._limits import Kind, format_limit

STOPPED: Final = 4
"""Exit status of a program that a limit ended."""

NOT_IN_FORCE: Final = 5
"""Exit status if limits were given, and were not in force."""

UNKEPT: Final = 6
"""Exit status if the limits' counters could not be used, whether before the program started or while it ran."""

_UNREAD: Final = 120
"""The exit status of Python, whatever it was before, if its last output could not be written."""

_MOST_NAMED: Final = 8
"""The most hosts, limits or scopes that one sentence names."""

_MOST_PLAN: Final = 100_000
_LIMITED: Final[Outcome] = "stopped"
_UNCOUNTED: Final[Outcome] = "store_failed"
_NO_CALL: Final = (
    "No call of a model was seen, so that limits on requests, turns, tokens and cost counted nothing. "
    "If the program asks one at an address of its own, name its host, as in RAVI_FORMATS=llm.internal=auto."
)
_SITE: Final = Path(__file__).parent / "site"
_AUTO_INSTRUMENTATION: Final = "opentelemetry.instrumentation.auto_instrumentation"


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a launch, and its run in the store.

    `status` is the exit status for us, negative for a signal; `said` are sentences for the user, `budgets` the final state of the limits.
    """

    kept: Kept
    name: str
    observe: bool
    budgets: Sequence[Mapping[str, Any]]
    ended: Ended
    status: int
    outcome: Outcome
    said: tuple[str, ...]


class Launch:
    """One `ravi-otel run`."""

    def __init__(
        self,
        command: Sequence[str],
        policy: Policy,
        *,
        terminate: bool = True,
        quiet: bool = False,
        allow_unseen: bool = False,
        content: bool = False,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Check the command and the policy before anything is started; raise ConfigurationError."""
        if not command:
            raise ConfigurationError("COMMAND is missing. Write: ravi-otel run --limit cost=0.50usd -- python agent.py")
        if os.name != "posix":
            raise ConfigurationError(
                "`ravi-otel run` needs a POSIX system. Call ravi_otel.instrument(limits=[...]) in the program instead."
            )
        if environ.get(VARIABLE):
            raise ConfigurationError(
                "this program runs under `ravi-otel run` already, and one run cannot hold another. Give the outer one the limits."
            )
        self._command = list(command)
        self._policy = policy
        self._terminate = terminate
        self._quiet = quiet
        self._allow_unseen = allow_unseen
        self._content = content
        self._lease_s = lease_of(environ.get(LEASE, ""))
        self._environ = dict(environ)
        program = target.find(command[0], environ)
        self._python = target.interpreter(program, environ)
        if self._python is not None:
            target.check(self._python, environ)
        self.name = policy.name or target.describe(command)

    def run(self, store: Store) -> Result:
        """Run the program to its end, and store how it ended."""
        occupy_standard_descriptors()
        policy = self._policy
        kept = store.begin(
            self.name,
            argv=self._command,
            version=__version__,
            limits=[{"limit": format_limit(each.limit), "source": each.source} for each in policy.limits],
            tags=dict(policy.tags),
            observe=int(policy.observe),
        )
        try:
            plan = self._plan(kept)
            if len(plan.write()) > _MOST_PLAN:
                raise ConfigurationError(f"the policy has {len(plan.limits)} limits, more than a program's environment takes. Give fewer.")
            ledger = plan.open_in_launcher()
            program = Program(self._command, self._environment(plan), kept.notes, terminate=self._terminate and not plan.observe)
            ended = program.run()
        except (OSError, RaviError) as error:
            with contextlib.suppress(sqlite3.Error, ConfigurationError):
                kept.end(outcome="failed")
            if isinstance(error, RaviError):
                raise
            raise target.NotFoundError(f"{self._command[0]!r} could not be started: {error.strerror or error}.", 126) from error
        status, outcome, said = self._judge(ended)
        said.extend(self._unknown(ended))
        said.extend(self._not_counted(ended, kept))
        # If no process counted, the usage is unknown, and 0 would be wrong.
        counted = outcome != "unattached" or bool(ended.working)
        budgets = self._budgets(plan, ledger, said, gone=not ended.survivors) if counted else ()
        said.extend(self._not_opened(ended, budgets))
        uncovered = [asdict(each) for each in ended.uncovered]
        try:
            kept.end(notes=said, outcome=outcome, status=ended.status, uncovered=uncovered, budgets=budgets)
        except (sqlite3.Error, ConfigurationError) as error:
            said.append(f"How it ended could not be written into the store: {error}")
        with contextlib.suppress(ConfigurationError), Upkeep(store) as upkeep:  # what cannot be removed now is removed after the next run
            upkeep.prune(keep=kept.launch)
        return Result(kept, self.name, policy.observe, budgets, ended, status, outcome, tuple(said))

    def _budgets(self, plan: Plan, ledger: Counters, said: list[str], *, gone: bool) -> tuple[dict[str, Any], ...]:
        """Return the final state of the limits, if there are any."""
        if not plan.limits:
            ledger.close()
            return ()
        limits = load("ravi_otel._launch.limits")
        return cast("tuple[dict[str, Any], ...]", limits.read_budgets(plan, ledger, service_in(self._environ), said, gone=gone))

    def _plan(self, kept: Kept) -> Plan:
        policy = self._policy
        return Plan(
            version=__version__,
            run_id=kept.launch,
            name=self.name,
            directory=str(kept.path),
            began_ns=time.monotonic_ns(),
            limits=tuple((format_limit(each.limit), each.origin) for each in policy.limits),
            tags=dict(policy.tags),
            prices=dict(policy.prices or {}),
            observe=policy.observe,
            admission=str(policy.admission),
            warn_at=policy.warn_at,
            terminate=self._terminate,
            lease_s=self._lease_s,
            quiet=self._quiet,
            content=self._content,
            counted_in="" if policy.ledger is None or not policy.ledger.many else policy.ledger.spelled,
        )

    def _environment(self, plan: Plan) -> dict[str, str]:
        """Return the program's environment: our `site` first on its path, then the auto-instrumentation we run under, and the plan."""
        around = sys.modules.get(_AUTO_INSTRUMENTATION)
        places = [str(_SITE), *([str(Path(around.__file__).parent)] if around is not None and around.__file__ else [])]
        before = self._environ.get("PYTHONPATH")
        return {
            **self._environ,
            "PYTHONPATH": os.pathsep.join([*places, *([before] if before else [])]),
            VARIABLE: plan.write(),
            SITE: f"{plan.version}:{'limited' if plan.limits else ''}:{plan.messages}",
        }

    # -- how it ended ---------------------------------------------------------------------------------------------

    def _judge(self, ended: Ended) -> tuple[int, Outcome, list[str]]:
        held = bool(self._policy.limits) and not self._policy.observe
        missing = self._not_attached(ended)
        if missing:
            return (NOT_IN_FORCE if held else ended.status), "unattached", missing
        status, outcome = (UNKEPT, _UNCOUNTED) if ended.unkept else (STOPPED, _LIMITED)
        if ended.stopped:
            return status, outcome, [f"The program swallowed {ended.refusals} refusals and was told to end. The last one: {ended.stopped}"]
        # A shell or another wrapper passes on the status of the Python it ran.
        uncaught = ended.uncaught or (self._python is None and ended.uncaught_below)
        if (uncaught and ended.status in (1, _UNREAD)) or (ended.uncaught_thread and ended.status in (0, _UNREAD)):
            said = "A limit ended the program."
            if ended.unkept:
                said = f"The limits could not be counted any more, and that ended the program; none of them was reached: {ended.unkept}"
            return status, outcome, [said]
        if held and ended.uncovered and not self._allow_unseen:
            return NOT_IN_FORCE, "uncovered", []
        if ended.status < 0:
            return ended.status, "signal", [f"The program was ended by signal {-ended.status}."]
        return ended.status, "ok" if ended.status == 0 else "failed", []

    def _not_counted(self, ended: Ended, kept: Kept) -> list[str]:
        """Return sentences about model calls that no limit covered, or about none having been seen."""
        limited = bool(self._policy.limits)
        told = [f"{said}: its calls were held to the limits as far as it works like those." for said in ended.outside] if limited else []
        if found := ended.uncovered:
            named = "; ".join(str(each) for each in found[:_MOST_NAMED])
            more = f"; and {len(found) - _MOST_NAMED:,} others" if len(found) > _MOST_NAMED else ""
            accepts = "accepted by --allow-unseen" if self._allow_unseen else "--allow-unseen accepts it"
            told.append(
                f"The limits did not cover {named}{more}. Only calls through openai, anthropic, groq and boto3, and requests of httpx, "
                f"requests, urllib3 and aiohttp, are counted and refused; {accepts}."
            )
        elif limited and not self._not_attached(ended) and not (ended.working and (kept.has_calls() or self._held_tools(kept))):
            told.append(_NO_CALL)
        return told

    def _held_tools(self, kept: Kept) -> bool:
        """Whether all limits are of tool calls, and the program made some."""
        return all(each.limit.kind == Kind.TOOL_CALLS for each in self._policy.limits) and kept.has_tools()

    def _not_opened(self, ended: Ended, budgets: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return a sentence about limits that had no effect, because the program never opened their scopes."""
        if self._not_attached(ended):
            return []
        refused = {row["limit"] for row in budgets if row["denied"]}  # an agent that its own limit refused was not opened either
        missed: dict[Place, None] = {}
        limits: list[str] = []
        for limit in (each.limit for each in self._policy.limits):
            missing = [place for place in places_of(limit) if spell(place) not in ended.opened]
            if missing and not (limit.kind == Kind.AGENTS_TOTAL and limit.label in refused):
                limits.append(format_limit(limit))
                missed.update(dict.fromkeys(missing))
        if not limits:
            return []
        what = _listed([f"no {kind}" if name is None else f"no {kind} {named(name)}" for kind, name in missed])
        when = "so far" if ended.survivors else "in this program"
        return [f"The {'limit' if len(limits) == 1 else 'limits'} {_listed(limits)} held for nothing: {what} was opened {when}."]

    def _unknown(self, ended: Ended) -> list[str]:
        """Return sentences about processes that still run, and about figures that may be too low."""
        told: list[str] = []
        if ended.survivors:
            running = f"{len(ended.survivors)} of its processes still run, under the same limits"
            told.append(f"{running}; `ravi-otel show` will tell what they did.")
        hard = len(ended.working - ended.left - set(ended.survivors))
        if hard:
            who = "A process" if hard == 1 else f"{hard} processes"
            counted = " The limits counted them all." if self._policy.limits else ""
            told.append(f"{who} ended without notice (os._exit or a signal): calls of the last instant may be missing above.{counted}")
        return told

    def _not_attached(self, ended: Ended) -> list[str]:
        what = "The limits were NOT in force" if self._policy.limits and not self._policy.observe else "The program was not observed"
        if ended.failed:
            return [f"{what} in some process: {each}" for each in dict.fromkeys(ended.failed)]
        attached = ended.pid in ended.attached if self._python is not None else bool(ended.attached)
        if attached:
            return []
        why = (
            "its Python never loaded us; options such as -I, -E and -S prevent it"
            if self._python is not None
            else "no Python process of it loaded us"
        )
        return [f"{what}: {why}."]


def _listed(words: Sequence[str]) -> str:
    """Return words as a list in a sentence, cut if they are many: `a, b and 3 others`."""
    shown = [*words[:_MOST_NAMED], *([f"{len(words) - _MOST_NAMED:,} others"] if len(words) > _MOST_NAMED else [])]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
