"""Show in a few seconds what the package does: a support desk whose agents are held to their budgets."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
import openai  # noqa: TID253 - the demo is an application

import ravi_otel
from ravi_otel._cli import support_desk
from ravi_otel._local.queries import Queries
from ravi_otel._local.render import console, render
from ravi_otel._local.store import VARIABLE as STORE
from ravi_otel._local.store import Store
from ravi_otel._local.wording import amount, clean, percent
from ravi_otel._telemetry.content import CAPTURE
from ravi_otel.errors import ConfigurationError
from ravi_otel.testing import ScriptedLLM

if TYPE_CHECKING:
    from rich.console import Console

    from ravi_otel._local.tree import RunRecord

_SCRIPTED_MODEL = "gpt-4.1-mini"
_NO_KEY = "OPENAI_API_KEY is not set: set it to call the real API, or leave out --live to use the scripted model, which needs no key."
_SLOWEST_S = 60
_LINES_OF_PACE = 4
"""How many calls' time a line that is told is given to be read."""

_LIMITS = (ravi_otel.cost_limit(0.05, on_unpriced="warn"), ravi_otel.time_limit(120))

Say = Callable[[str], None]


@click.command(short_help="Watch a runaway agent be stopped at its budget.")
@click.option("--live", is_flag=True, help="Call the real API with OPENAI_API_KEY, and OPENAI_MODEL (gpt-4.1-mini unless set).")
@click.option(
    "--pace",
    type=click.FloatRange(0, _SLOWEST_S),
    default=0.0,
    metavar="SECONDS",
    help="Wait so long before each call of the support desk, to watch it with `ravi-otel ui` or `ravi-otel top`.",
)
def demo(*, live: bool, pace: float) -> None:
    """Run a support desk: one agent works inside its budget, another runs away and is stopped.

    Without options everything stays on this machine: the model is a scripted HTTP server on 127.0.0.1. The run is kept in the local
    store, with what was said.
    """
    with _kept():
        _tell(live=live, pace=pace)
    console().print("\nThe run is kept, with what was said: look at it with `ravi-otel ui`.", style="dim")


def _tell(*, live: bool, pace: float) -> None:
    if not live:
        _scripted(pace)
        return
    key = os.environ.get("OPENAI_API_KEY", "").strip()
    if not key:
        raise ConfigurationError(_NO_KEY)
    model = os.environ.get("OPENAI_MODEL", "").strip() or _SCRIPTED_MODEL
    where = f"model {clean(model)} of the real API"
    try:
        with openai.OpenAI(api_key=key, timeout=30, max_retries=1) as client:
            _support_desk(client, model, where, None, pace)
    except openai.OpenAIError as error:
        msg = f"the call to the API failed with {type(error).__name__}: {clean(str(error), 300)}"
        raise click.ClickException(msg) from error


@contextmanager
def _kept() -> Generator[None]:
    """Have the runs kept where others of this directory are, with what is said, unless the environment says otherwise."""
    wanted = {STORE: ".ravi", CAPTURE: "SPAN_ONLY"}
    added = [name for name in wanted if name not in os.environ]
    os.environ.update({name: wanted[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _scripted(pace: float) -> None:
    where = "a scripted model on this machine"
    waits: dict[str, list[Callable[[Any], None]]] = {"request": [lambda _: time.sleep(pace)]}
    direct = openai.DefaultHttpxClient(trust_env=False, event_hooks=waits)  # a proxy named in the environment cannot reach this process
    with ScriptedLLM(support_desk.answer) as server:
        told: dict[str, Any] = {"base_url": server.base_url, "api_key": "any", "max_retries": 0}
        with openai.OpenAI(**told, http_client=direct) as client:
            _support_desk(client, _SCRIPTED_MODEL, where, lambda: len(server.requests), pace)


def _support_desk(client: openai.OpenAI, model: str, where: str, arrived: Callable[[], int] | None, pace: float) -> None:
    out, begun = console(), list[str]()
    say = _printing(out, _LINES_OF_PACE * pace)
    say(f"A support desk with {where}\n", "bold")
    limit_lines = _LimitLines(_indented(say), arrived)
    try:
        with ravi_otel.instrument(), limit_lines.attached():
            with ravi_otel.run("support-desk", limits=_LIMITS) as run:
                begun.append(str(run.id))
                _work(run, client, model, say)
            if arrived is not None and limit_lines.arrived_before is not None:
                received = arrived()
                say(f"The model server received {received} requests, {received - limit_lines.arrived_before} of them after the refusal.\n")
    finally:
        _show(begun, out, render)


def _show(begun: Sequence[str], out: Console, draw: Callable[[RunRecord, Console], None]) -> None:
    """Draw the run that has begun, as it is kept."""
    for run in begun:
        with Queries(Store.find()) as queries:
            draw(queries.record(run), out)


def _work(run: ravi_otel.Run, client: openai.OpenAI, model: str, say: Callable[..., None]) -> None:
    say("refund-clerk: a customer wants a refund", "bold")
    text = support_desk.answer_refund(client, model, support_desk.MAIL, _indented(say))
    say(f"  answer: {clean(text, 300)}\n")
    say("parcel-chaser: loops, and swallows every exception", "bold")
    before = run.stats()
    failures = support_desk.chase_parcel(client, model, _indented(say))
    after = run.stats()
    sent, refused = after.requests - before.requests, after.refused - before.refused
    say(f"  {sent} requests were sent, {failures} calls failed, {refused} of them refused before they were sent\n")


def _printing(out: Console, pace: float = 0.0) -> Callable[..., None]:
    def say(line: str, style: str | None = None) -> None:
        out.print(line, style=style, soft_wrap=True)
        time.sleep(pace)

    return say


def _indented(say: Callable[..., None]) -> Callable[..., None]:
    def tell(line: str, style: str | None = None) -> None:
        say(f"  {clean(line, 300)}", style)

    return tell


# -- limit events, as they happen -----------------------------------------------------------------------------------


class _LimitLines(logging.Handler):
    """Turn the records of the logger `ravi_otel.limits` into lines of our own; any application can do so.

    `arrived_before` is what `arrived` said when a limit was first exceeded.
    """

    def __init__(self, say: Callable[[str, str], None], arrived: Callable[[], int] | None) -> None:
        super().__init__()
        self._say = say
        self._arrived = arrived
        self.arrived_before: int | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Print one event."""
        try:
            fields = vars(record)
            if fields["event"] == "limit_exceeded" and self._arrived and self.arrived_before is None:
                self.arrived_before = self._arrived()
            self._say(*_sentence(fields))
        except Exception:  # noqa: BLE001 - what logging asks of a handler: report, never raise
            self.handleError(record)

    @contextmanager
    def attached(self) -> Generator[None]:
        """Print the lines, and let nobody else print them meanwhile."""
        logger = logging.getLogger("ravi_otel.limits")
        propagated, logger.propagate = logger.propagate, False
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)
            logger.propagate = propagated


def _sentence(fields: dict[str, Any]) -> tuple[str, str]:
    kind, name = fields["limit_kind"], clean(fields.get("scope_name")) or fields["scope"]
    used, limit = amount(kind, fields["used"]), amount(kind, fields["threshold"])
    if fields["event"] == "limit_nearing":
        return f"! warning: {name} has used {percent(fields['ratio'])} of its {kind}: {used} of {limit}", "yellow"
    return f"x refused: {name} has used {used} of {limit} {kind}, and the next call does not fit", "red"
