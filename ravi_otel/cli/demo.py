"""Show in a few seconds what the package does: a support desk, observed, and held to its budgets."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
import openai

import ravi_otel
from ravi_otel.cli.support_desk import agents
from ravi_otel.cli.support_desk.model import answer
from ravi_otel.local import RunRecord, console, render
from ravi_otel.local.wording import amount, clean, percent
from ravi_otel.testing import ScriptedLLM

_SCRIPTED_MODEL = "gpt-4.1-mini"
_NO_KEY = "OPENAI_API_KEY is not set: set it to call the real API, or leave out --live to use the scripted model, which needs no key."
_LIMITS = ("cost=$0.05", "time=120s")

Say = Callable[[str], None]


@click.command()
@click.option("--live", is_flag=True, help="Call the real API: needs OPENAI_API_KEY, takes OPENAI_MODEL (gpt-4.1-mini). Costs less than $0.05.")
def demo(*, live: bool) -> None:
    """Run a support desk: one agent works inside its budget, another runs away and is stopped.

    Without options everything stays on this machine: the model is a scripted HTTP server on 127.0.0.1.
    """
    if not live:
        _scripted()
        return
    key = os.environ.get("OPENAI_API_KEY", "").strip()
    if not key:
        raise click.UsageError(_NO_KEY)
    model = os.environ.get("OPENAI_MODEL", "").strip() or _SCRIPTED_MODEL
    try:
        with openai.OpenAI(api_key=key, timeout=30, max_retries=1) as client:
            _play(client, model, f"the real API, model {clean(model)}", None)
    except openai.OpenAIError as error:
        msg = f"the call to the API failed with {type(error).__name__}: {clean(str(error), 300)}"
        raise click.ClickException(msg) from error


def _scripted() -> None:
    with ScriptedLLM(answer) as server, openai.OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
        _play(client, _SCRIPTED_MODEL, f"a scripted model on {server.base_url}", lambda: len(server.requests))


def _play(client: openai.OpenAI, model: str, where: str, arrived: Callable[[], int] | None) -> None:
    record, out = RunRecord(), console()

    def say(line: str, style: str | None = None) -> None:
        out.print(line, style=style, soft_wrap=True)

    say(f"A support desk on {where}\n", "bold")
    with ravi_otel.instrument() as instrumentation, _limit_lines(say):
        instrumentation.listen(record)
        with ravi_otel.run("support-desk", limits=_LIMITS) as run:
            say("refund-clerk: a customer wants a refund", "bold")
            text = agents.answer_refund(client, model, agents.MAIL, _indented(say))
            say(f"  answer: {clean(text, 300)}\n")
            say("parcel-chaser: loops, and swallows every exception", "bold")
            before = run.stats()
            failures = agents.chase_parcel(client, model, _indented(say))
            spent = run.stats()
        say(f"  {spent.requests - before.requests} calls were sent, {failures} failed or were refused before they were sent\n")
        if arrived is not None:
            say(f"Requests the model server received: {arrived()}, and {spent.requests} were counted.\n")
    render(record, out)


def _indented(say: Say) -> Say:
    return lambda line: say(f"  {clean(line, 300)}")


# -- limit events, as they happen -----------------------------------------------------------------------------------


class _LimitLines(logging.Handler):
    """Turn the JSON lines of the logger `ravi_otel.limits` into lines for people; any application can do so."""

    def __init__(self, say: Callable[[str, str], None]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """Print one event."""
        try:
            fields = json.loads(record.getMessage())
            self._say(*_sentence(fields))
        except Exception:  # noqa: BLE001 - what logging asks of a handler: report, never raise
            self.handleError(record)


def _sentence(fields: dict[str, Any]) -> tuple[str, str]:
    kind, name = fields["limit_kind"], clean(fields["scope_name"]) or fields["scope"]
    used, limit = amount(kind, fields["used"]), amount(kind, fields["threshold"])
    if fields["event"] == "limit_nearing":
        return f"  ! warning: {name} has used {percent(fields['ratio'])} of its {kind}: {used} of {limit}", "yellow"
    return f"  x refused: {name} has used {used} of {limit} {kind}, and the next call does not fit", "red"


@contextmanager
def _limit_lines(say: Callable[[str, str], None]) -> Iterator[None]:
    logger, handler = logging.getLogger("ravi_otel.limits"), _LimitLines(say)
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated
