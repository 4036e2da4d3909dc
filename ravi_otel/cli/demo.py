"""Show in a few seconds what the package does: a support desk, observed, and held to its budgets."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import click
import openai  # noqa: TID253 - the demo is an application

import ravi_otel
from ravi_otel.cli.support_desk import agents
from ravi_otel.cli.support_desk.model import answer
from ravi_otel.errors import ConfigurationError
from ravi_otel.local import RunRecord, console, render
from ravi_otel.local.wording import amount, clean, percent
from ravi_otel.testing import ScriptedLLM

_SCRIPTED_MODEL = "gpt-4.1-mini"
_NO_KEY = "OPENAI_API_KEY is not set: set it to call the real API, or leave out --live to use the scripted model, which needs no key."
_LIMITS = (ravi_otel.cost_limit(0.05, on_unpriced="warn"), ravi_otel.time_limit(120))

Say = Callable[[str], None]


@click.command(short_help="Watch a support desk work, and a runaway agent be stopped.")
@click.option("--live", is_flag=True, help="Call the real API with OPENAI_API_KEY, and OPENAI_MODEL (gpt-4.1-mini unless set).")
def demo(*, live: bool) -> None:
    """Run a support desk: one agent works inside its budget, another runs away and is stopped.

    Without options everything stays on this machine: the model is a scripted HTTP server on 127.0.0.1.
    """
    if not live:
        _scripted()
        return
    key = os.environ.get("OPENAI_API_KEY", "").strip()
    if not key:
        raise ConfigurationError(_NO_KEY)
    model = os.environ.get("OPENAI_MODEL", "").strip() or _SCRIPTED_MODEL
    try:
        with openai.OpenAI(api_key=key, timeout=30, max_retries=1) as client:
            _play(client, model, f"model {clean(model)} of the real API", None)
    except openai.OpenAIError as error:
        msg = f"the call to the API failed with {type(error).__name__}: {clean(str(error), 300)}"
        raise click.ClickException(msg) from error


def _scripted() -> None:
    direct = openai.DefaultHttpxClient(trust_env=False)  # a proxy named in the environment cannot reach this process
    with ScriptedLLM(answer) as server, openai.OpenAI(base_url=server.base_url, api_key="any", max_retries=0, http_client=direct) as client:
        _play(client, _SCRIPTED_MODEL, "a scripted model on this machine", lambda: len(server.requests))


def _play(client: openai.OpenAI, model: str, where: str, arrived: Callable[[], int] | None) -> None:
    record, out = RunRecord(), console()

    def say(line: str, style: str | None = None) -> None:
        out.print(line, style=style, soft_wrap=True)

    say(f"A support desk with {where}\n", "bold")
    limit_lines = _LimitLines(say, arrived)
    try:
        with ravi_otel.instrument() as instrumentation, limit_lines.attached():
            instrumentation.listen(record)
            with ravi_otel.run("support-desk", limits=_LIMITS) as run:
                _work(run, client, model, say)
            if arrived is not None and limit_lines.arrived_before is not None:
                received = arrived()
                say(f"The model server received {received} requests, {received - limit_lines.arrived_before} of them after the refusal.\n")
    finally:
        render(record, out)


def _work(run: ravi_otel.Run, client: openai.OpenAI, model: str, say: Callable[..., None]) -> None:
    say("refund-clerk: a customer wants a refund", "bold")
    text = agents.answer_refund(client, model, agents.MAIL, _indented(say))
    say(f"  answer: {clean(text, 300)}\n")
    say("parcel-chaser: loops, and swallows every exception", "bold")
    before = run.stats()
    failures = agents.chase_parcel(client, model, _indented(say))
    after = run.stats()
    sent, refused = after.requests - before.requests, after.refused - before.refused
    say(f"  {sent} requests were sent, {failures} calls failed, {refused} of them refused before they were sent\n")


def _indented(say: Say) -> Say:
    return lambda line: say(f"  {clean(line, 300)}")


# -- limit events, as they happen -----------------------------------------------------------------------------------


class _LimitLines(logging.Handler):
    """Turn the JSON lines of the logger `ravi_otel.limits` into lines for people; any application can do so.

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
            fields = json.loads(record.getMessage())
            if fields["event"] == "limit_exceeded" and self._arrived and self.arrived_before is None:
                self.arrived_before = self._arrived()
            self._say(*_sentence(fields))
        except Exception:  # noqa: BLE001 - what logging asks of a handler: report, never raise
            self.handleError(record)

    @contextmanager
    def attached(self) -> Generator[None]:
        """Take the lines, and let nobody else print them meanwhile."""
        logger = logging.getLogger("ravi_otel.limits")
        propagated, logger.propagate = logger.propagate, False
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)
            logger.propagate = propagated


def _sentence(fields: dict[str, Any]) -> tuple[str, str]:
    kind, name = fields["limit_kind"], clean(fields["scope_name"]) or fields["scope"]
    used, limit = amount(kind, fields["used"]), amount(kind, fields["threshold"])
    if fields["event"] == "limit_nearing":
        return f"  ! warning: {name} has used {percent(fields['ratio'])} of its {kind}: {used} of {limit}", "yellow"
    return f"  x refused: {name} has used {used} of {limit} {kind}, and the next call does not fit", "red"
