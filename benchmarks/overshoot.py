"""Print how far limits are overshot when N calls are made at once: the real client, a scripted provider on loopback.

    python benchmarks/overshoot.py [--peers] [--into docs/bounds.md] [--admission estimate,strict] [N ...]

Each row is one run with one limit, hit by N calls at once (default 1 2 8 32 256) from tasks or from threads. `sent` is what
reached the provider (tool calls: what was executed; agents: the most that were live at once; agents in all: how many were let
in; fan-out: the most that lived under one agent), `used` what the provider
counted, `charged` what the library did, `overshoot` how far `used` passes the limit. `bound` is what is promised: 0 for
what is counted and for `strict`; for `estimate` the sum over all operations of what each used beyond its grant, worked out
here from the ledger's grants and the provider's own counts. The exit status is 1 when a bound did not hold.

`--peers` does the same work under the limits of pydantic-ai and inspect_ai, each in an environment of its own.
docs/bounds.md says what the rows mean and how the peers were set up.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import peers
from crowd import INPUT, INPUT_NANO, MODES, OUTPUT_NANO, PROMPT, Crowd, Provider, Watched, call
from pages import printed_into

import ravi_otel
from ravi_otel import BudgetContendedError, BudgetExhaustedError, ConfigurationError, SpawnDeniedError, parse_limit
from ravi_otel._runtime.state import STATE

COUNTS = (1, 2, 8, 32, 256)
NANO = 10**9
HEAD = ("library", "limit on", "answers", "calls", "limit", "sent", "used", "charged", "overshoot", "bound", "held")
AGENTS = ("agents", "agents_total", "fan_out")
COUNTED = ("requests", "turns", "messages", "tool_calls", *AGENTS)
SPENT = ("tokens", "cost")
REFUSALS = (BudgetExhaustedError, BudgetContendedError, SpawnDeniedError)


@dataclass(frozen=True)
class Row:
    """Say what is asked of one limit: answers of `output` tokens, with a cap of `cap` where the caller states one."""

    kind: str
    output: int = 100
    cap: int | None = None

    @property
    def answers(self) -> str:
        """Tell the answers in words."""
        if self.kind not in SPENT:
            return ""
        return f"{self.output:,}" + ("" if self.cap is None else f", cap {self.cap:,}")

    def amount(self, count: int) -> int:
        """Give the limit for so many calls: room for a quarter of them, and at least for five."""
        fit = max(5, count // 4)
        if self.kind == "tokens":
            return fit * (INPUT + self.output)
        return fit * self.nano if self.kind == "cost" else fit

    @property
    def nano(self) -> int:
        """Give the price of one call in nano-USD."""
        return INPUT * INPUT_NANO + self.output * OUTPUT_NANO


ROWS = (
    *(Row(kind) for kind in COUNTED),
    *(Row(kind, *shape) for kind in SPENT for shape in ((100,), (100, 100), (5,), (3_000,), (3_000, 3_000))),
)


@dataclass(frozen=True)
class Outcome:
    """Hold what one run brought; amounts in inner units (nano-USD for cost)."""

    limit: int
    sent: int
    used: int
    charged: int | None
    bound: int | None

    @property
    def over(self) -> int:
        """Give how far the limit was passed."""
        return max(0, self.used - self.limit)

    @property
    def held(self) -> bool:
        """Tell whether the promise was kept, and the truth told."""
        return self.bound is None or (self.over <= self.bound and self.charged == self.used)


class Live:
    """Count those that are inside at once; each stays until all have come or were refused. `told` is what `read` says then."""

    def __init__(self, count: int, read: Callable[[], float]) -> None:
        self._lock, self._left, self._read = threading.Lock(), count, read
        self.inside = self.most = self.told = 0
        self.all_there = threading.Event()

    def move(self, step: int) -> None:
        """Enter (1), leave (-1)."""
        with self._lock:
            self.inside += step
            self.most = max(self.most, self.inside)

    def there(self) -> None:
        """Note that one more was let in or refused."""
        with self._lock:
            self._left -= 1
            if self._left <= 0:
                self.told = int(self._read())  # nobody has left yet
                self.all_there.set()


def _agents(crowd: Crowd, count: int, run: ravi_otel.Run) -> tuple[list[Any], Live]:
    live = Live(count, lambda: run.limits[0].used)

    def entered(number: int) -> Any:
        try:
            agent = ravi_otel.agent(f"a{number}").__enter__()
        except SpawnDeniedError:
            live.there()
            raise
        live.move(1)
        live.there()
        return agent

    def threaded(number: int) -> None:
        agent = entered(number)
        live.all_there.wait(30)
        live.move(-1)
        agent.__exit__(None, None, None)

    async def tasked(number: int) -> None:
        agent = entered(number)
        await asyncio.to_thread(live.all_there.wait, 30)
        live.move(-1)
        agent.__exit__(None, None, None)

    return crowd.act(count, threaded, tasked), live


def _tools(crowd: Crowd, count: int) -> tuple[list[Any], int]:
    ran: list[int] = []

    @ravi_otel.tool
    async def awaited(number: int) -> None:
        await asyncio.sleep(0)
        ran.append(number)

    return crowd.act(count, ravi_otel.tool(ran.append), awaited), len(ran)


def _calls(crowd: Crowd, row: Row, count: int) -> list[Any]:
    more = {} if row.cap is None else {"max_completion_tokens": row.cap}
    return crowd.call([call(number + 1 if row.kind == "messages" else 1, **more) for number in range(count)])


def _spec(row: Row, count: int, admission: str) -> ravi_otel.Limit:
    amount = row.amount(count)
    value = f"{amount / NANO:.9f}" if row.kind == "cost" else str(amount)
    limit = parse_limit(f"{row.kind}={value}")
    if row.kind not in SPENT:
        return limit
    make = ravi_otel.token_limit if row.kind == "tokens" else ravi_otel.cost_limit
    return make(amount if row.kind == "tokens" else value, admission=admission)  # type: ignore[arg-type]  # of the kind its constructor takes


def think_s(count: int) -> float:
    """Give how long the provider thinks, so that all of them are in flight at once."""
    return 0.02 + count / 1_000


def ours(provider: Provider, crowd: Crowd, row: Row, count: int, admission: str) -> Outcome:
    """Measure one row."""
    provider.begin(row.output, think_s(count))
    watched = Watched(STATE.engine.ledger)
    limit = _spec(row, count, admission)
    with ExitStack() as stack:
        STATE.engine.ledger = watched
        stack.callback(setattr, STATE.engine, "ledger", watched.ledger)
        run = stack.enter_context(ravi_otel.run("overshoot", limits=[limit]))
        most = charged = 0
        if row.kind in AGENTS:
            if row.kind == "fan_out":
                stack.enter_context(ravi_otel.agent("parent"))
            results, live = _agents(crowd, count, run)
            most, charged = live.most, live.told
        elif row.kind == "tool_calls":
            results, most = _tools(crowd, count)
        else:
            results = _calls(crowd, row, count)
    for one in results:
        if isinstance(one, BaseException) and not isinstance(one, REFUSALS):
            raise one
    if row.kind == "tool_calls":
        charged = int(run.stats().tool_calls)
    if row.kind in (*AGENTS, "tool_calls"):
        return Outcome(limit.value, most, most, charged, 0)
    (account,) = run.scope.accounts
    used = {"messages": provider.longest, "tokens": provider.tokens, "cost": provider.nano}.get(row.kind, provider.sent)
    charged = used if row.kind == "messages" else account.used  # a level has no sum to compare
    return Outcome(limit.value, provider.sent, used, charged, _bound(row, admission, watched, provider))


def _bound(row: Row, admission: str, watched: Watched, provider: Provider) -> int:
    """Sum what each operation that was sent used beyond its grant; every one of them used the same."""
    if row.kind not in SPENT or admission == "strict":
        return 0
    if len(watched.grants) != provider.sent:
        raise RuntimeError(f"{len(watched.grants)} operations were granted something and {provider.sent} requests were sent")
    actual = INPUT + row.output if row.kind == "tokens" else row.nano
    return sum(max(0, actual - granted[row.kind]) for granted in watched.grants.values())


def theirs(provider: Provider, library: peers.Limiter, row: Row, count: int, mode: str) -> Outcome | str:
    """Measure one row under a peer's limits; a text says why not."""
    provider.begin(row.output, think_s(count))
    amount = row.amount(count)
    ask = {
        "url": provider.server.base_url,
        "prompt": PROMPT,
        "count": count,
        "mode": mode,
        "kind": row.kind,
        "limit": amount / NANO if row.kind == "cost" else amount,
        "cap": row.cap,
        "prices": [INPUT_NANO / 1_000, OUTPUT_NANO / 1_000],
    }
    told = library.ask(ask)
    if told.get("none"):
        return str(told["none"])
    charged = told["charged"]
    if charged is not None and row.kind == "cost":
        charged = round(charged * NANO)
    used = {"tokens": provider.tokens, "cost": provider.nano, "messages": provider.longest, "tool_calls": told.get("ran", 0)}
    sent = told["ran"] if row.kind == "tool_calls" else provider.sent
    return Outcome(amount, sent, used.get(row.kind, provider.sent), charged, None)


# -- printing -------------------------------------------------------------------------------------------------------


def _shown(row: Row, amount: int | None) -> str:
    if amount is None:
        return ""
    return f"${amount / NANO:.6f}" if row.kind == "cost" else f"{amount:,}"


def _line(name: str, row: Row, mode: str, count: int, outcome: Outcome) -> str:
    cells: list[str] = [name, row.kind, row.answers, f"{count} {mode}", _shown(row, outcome.limit), f"{outcome.sent:,}"]
    cells += [_shown(row, each) for each in (outcome.used, outcome.charged, outcome.over, outcome.bound)]
    cells.append("none stated" if outcome.bound is None else "yes" if outcome.held else "**no**")
    return f"| {' | '.join(cells)} |"


def _begin() -> None:
    print(f"\n| {' | '.join(HEAD)} |\n|{'---|' * 3}{'---:|' * 7}---|")


def _is_built(admission: str) -> bool:
    try:
        with ravi_otel.run("is it built", limits=[ravi_otel.token_limit(1, admission=admission)]):
            return True
    except ConfigurationError as error:
        print(f"\nadmission={admission}: {error}")
        return False


def print_ours(provider: Provider, counts: Sequence[int], admissions: Sequence[str]) -> bool:
    """Print our rows; tell whether every bound held."""
    good = True
    for admission in admissions:
        if not _is_built(admission):
            continue
        rows = [row for row in ROWS if row.kind in SPENT or admission == admissions[0]]
        _begin()
        for row in rows:
            name = f"ravi-otel, {admission}" if row.kind in SPENT else "ravi-otel"
            for mode in MODES:
                for count in counts:
                    outcome = ours(provider, Crowd(provider.server.base_url, mode), row, count, admission)
                    good = good and outcome.held
                    print(_line(name, row, mode, count, outcome), flush=True)
    return good


def print_theirs(provider: Provider, counts: Sequence[int], note: Callable[[str], None]) -> None:
    """Print the peers' rows, and what each of them has no limit for."""
    for package in peers.LIMITERS:
        library = peers.limiter(package)
        if isinstance(library, str):
            note(f"{package}: {library}")
            continue
        missing: dict[str, None] = {}
        _begin()
        with library:
            name = f"{package} {library.version}"
            for row in ROWS:
                for mode in MODES:
                    for count in counts:
                        outcome = theirs(provider, library, row, count, mode)
                        if isinstance(outcome, str):
                            missing[outcome] = None
                            break
                        print(_line(name, row, mode, count, outcome), flush=True)
        for reason in missing:
            note(f"{name}: {reason}")


def main() -> int:
    """Print the tables; give 1 when a bound did not hold."""
    options = argparse.ArgumentParser(description="Print how far limits are overshot.")
    options.add_argument("counts", type=int, nargs="*", metavar="N", default=None)
    options.add_argument("--admission", default="estimate,strict", help="of estimate, strict")
    options.add_argument("--peers", action="store_true", help="do the same work under the limits of two other libraries")
    options.add_argument("--into", type=Path, help="a page with the tables of an earlier run, to be replaced")
    given = options.parse_args()
    counts = given.counts or COUNTS
    logging.getLogger("ravi_otel").setLevel(logging.CRITICAL)  # it would tell every limit that is passed, and that is meant
    with printed_into(given.into, "overshoot"), Provider() as provider, ravi_otel.instrument():
        machine = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
        print(f"{time.strftime('%d %B %Y', time.gmtime())}: openai {openai.__version__}, {machine}")
        good = print_ours(provider, counts, given.admission.split(","))
        if given.peers:
            notes: list[str] = []
            print_theirs(provider, counts, notes.append)
            print("".join(f"\n* {note}" for note in notes))
        print(f"\nEvery stated bound held: {'yes' if good else 'NO'}.")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
