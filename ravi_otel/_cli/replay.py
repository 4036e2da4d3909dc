"""Send a stored run to an OTLP backend."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from ravi_otel._cli.frame import find_store, named, store_option
from ravi_otel._local.otlp import SIGNALS, Signal
from ravi_otel._local.queries import Queries
from ravi_otel._local.replay import PROTOCOLS, ReplayError, Sent, backend, size
from ravi_otel._local.replay import replay as send
from ravi_otel._local.wording import clean, count, many
from ravi_otel.errors import ConfigurationError

_PATIENCE_S = 1.0
_UNITS = {"traces": "span", "metrics": "metric point", "logs": "log record"}


@click.command(short_help="Send a stored run to an OTLP backend.")
@click.argument("run", required=False)
@click.option(
    "--endpoint", metavar="URL", help="Base URL of the backend, like http://localhost:4318. Default: OTEL_EXPORTER_OTLP_ENDPOINT."
)
@click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, help="Header to send, besides OTEL_EXPORTER_OTLP_HEADERS.")
@click.option("--protocol", type=click.Choice(PROTOCOLS), default=PROTOCOLS[0], show_default=True, help="How to write the requests.")
@click.option("--signal", "signals", type=click.Choice(SIGNALS), multiple=True, help="Send this signal only; may be repeated.")
@store_option
def replay(
    *, run: str | None, endpoint: str | None, headers: tuple[str, ...], protocol: str, signals: tuple[str, ...], place: Path | None
) -> None:
    """Send a stored run's spans, metrics and log records to any OTLP backend, with their own ids and times.

    RUN is the id of a run, of a `ravi-otel run` or of a process, or of a call, span or trace in one, or the beginning of an id; the latest
    run when it is left out.
    """
    to = backend(endpoint, headers, protocol)
    store = find_store(place)
    with Queries(store) as queries:
        known = named(queries, run)
    run_id = known.id if known.kind in ("launch", "process") else known.run
    if run_id is None:
        raise ConfigurationError(f"{clean(run, 60)} names no run. `ravi-otel runs` lists them.")
    chosen: tuple[Signal, ...] = tuple(signal for signal in SIGNALS if not signals or signal in signals)
    try:
        with _progress(size(store, run_id, chosen)) as advanced:
            sent = send(store, run_id, to, signals=chosen, advanced=advanced)
    except ReplayError as error:
        told = f" Before that, {_amounts(error.sent)} had been sent." if error.sent is not None and error.sent.requests else ""
        raise ReplayError(f"{error}{told}") from error
    where, shown = clean(to.shown(), 200), clean(run_id)
    click.echo(f"Sent {_amounts(sent)} of run {shown} to {where}." if sent.requests else f"Run {shown} holds nothing to send.")
    if sent.left_out:
        click.echo(f"{many(sent.left_out, 'record')} could not be read and {_was(sent.left_out)} left out.", err=True)
    if sent.rejected:
        said = f": {clean(sent.said, 200)}" if sent.said else "."
        msg = f"the backend took the requests and rejected {count(sent.rejected)} of what was in them{said}"
        raise ReplayError(msg)


def _amounts(sent: Sent) -> str:
    told = [many(sent.items[signal], _UNITS[signal]) for signal in SIGNALS if sent.items.get(signal)]
    return ", ".join(told[:-1]) + f" and {told[-1]}" if len(told) > 1 else told[0] if told else "nothing"


def _was(number: int) -> str:
    return "was" if number == 1 else "were"


@contextmanager
def _progress(total: int) -> Generator[Callable[[int], None]]:
    """Show how far it is once it has taken more than a second: a bar on a terminal, else one line."""
    output = Console(stderr=True)
    columns = (TextColumn("Sending"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=output, transient=True)
    task = bar.add_task("sending", total=total)
    begin = bar.start if output.is_terminal else lambda: click.echo(f"Sending {total / 1e6:,.1f} MB ...", err=True)
    timer = threading.Timer(_PATIENCE_S, begin)  # of its own: one request may take longer than that
    timer.daemon = True
    timer.start()
    try:
        yield lambda done: bar.advance(task, done)
    finally:
        timer.cancel()
        timer.join()
        if bar.live.is_started:
            bar.stop()
