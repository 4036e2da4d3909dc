"""Send a stored run to an OTLP backend."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from ravi_otel.cli.stored import found, store_option
from ravi_otel.local._wording import clean, count
from ravi_otel.local.store.encoding import Signal
from ravi_otel.local.store.posting import ReplayError
from ravi_otel.local.store.replaying import PROTOCOLS, SIGNALS, Sent, backend, size
from ravi_otel.local.store.replaying import replay as send

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
    """Send a stored run's spans, metrics and log records to any OTLP/HTTP backend, with their own ids and times.

    RUN is a run's id, or the beginning or end of one; the latest run when it is left out.
    """
    to = backend(endpoint, headers, protocol)
    stored = found(place).run(run)
    chosen: tuple[Signal, ...] = tuple(signal for signal in SIGNALS if not signals or signal in signals)
    try:
        with _progress(size(stored, chosen)) as advanced:
            sent = send(stored, to, signals=chosen, advanced=advanced)
    except ReplayError as error:
        told = f" Before that, {_amounts(error.sent)} had been sent." if error.sent is not None and error.sent.requests else ""
        raise ReplayError(f"{error}{told}") from error
    where, run_id = clean(to.shown(), 200), clean(stored.run_id)
    click.echo(f"Sent {_amounts(sent)} of run {run_id} to {where}." if sent.requests else f"Run {run_id} holds nothing to send.")
    if sent.left_out:
        click.echo(
            f"{count(sent.left_out)} {_plural('line', sent.left_out)} could not be read and {_was(sent.left_out)} left out.", err=True
        )
    if sent.rejected:
        said = f": {clean(sent.said, 200)}" if sent.said else "."
        msg = f"the backend took the requests and rejected {count(sent.rejected)} of what was in them{said}"
        raise ReplayError(msg)


def _amounts(sent: Sent) -> str:
    told = [f"{count(sent.items[signal])} {_plural(_UNITS[signal], sent.items[signal])}" for signal in SIGNALS if sent.items.get(signal)]
    return ", ".join(told[:-1]) + f" and {told[-1]}" if len(told) > 1 else told[0] if told else "nothing"


def _plural(word: str, number: int) -> str:
    return word if number == 1 else f"{word}s"


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
