"""Serve the page in the browser."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Final

import click

from ravi_otel._cli.frame import directory_of, is_there, path_of, store_option
from ravi_otel._extras import load
from ravi_otel._local.store import Store
from ravi_otel.errors import ConfigurationError, MissingExtraError
from ravi_otel.policy import _checks as checks
from ravi_otel.supervisor.approval._queue import is_queue_url, queue_place

_PORT: Final = 8411
_MOST_PORT: Final = 65_535
_AUDIT: Final = Path("audit")


@click.command(short_help="Look at all of it in the browser.")
@click.option("--port", type=click.IntRange(1, _MOST_PORT), default=_PORT, show_default=True, help="Where to serve it.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen; other than here needs --token-file.")
@click.option("--token-file", type=click.Path(path_type=Path), metavar="FILE", help="A file of your own with the token of the URL.")
@click.option(
    "--public-url",
    metavar="URL",
    help="Where a proxy has the page, such as https://ravi.example.com. Each waiting request then has a link to copy, by which one other "
    "person decides it, and sees nothing else.",
)
@click.option("--user-header", metavar="NAME", help="The header in which a proxy names who is signed in.")
@click.option("--trusted-proxy", "trusted_proxies", multiple=True, metavar="ADDRESS", help="From whom that header is believed; repeatable.")
@click.option("--read-only", is_flag=True, help="Only show; nothing can be changed or answered.")
@click.option("--queue", metavar="PATH|URL", help="The queue of approvals; otherwise as `approvals` finds it.")
@click.option("--audit", type=click.Path(path_type=Path), metavar="DIR", default=_AUDIT, show_default=True, help="The audit logs.")
@click.option(
    "--jaeger-url",
    envvar="RAVI_JAEGER_URL",
    metavar="URL",
    help="Jaeger, such as http://127.0.0.1:16686: runs link to their traces.",
)
@click.option(
    "--ledger", envvar="RAVI_LEDGER", metavar="URL", help="The ledger in which programs share budgets, such as redis://HOST:6379."
)
@store_option
def ui(  # noqa: PLR0913 - one parameter an option
    *,
    port: int,
    host: str,
    token_file: Path | None,
    public_url: str | None,
    user_header: str | None,
    trusted_proxies: tuple[str, ...],
    read_only: bool,
    queue: str | None,
    audit: Path,
    jaeger_url: str | None,
    ledger: str | None,
    place: Path | None,
) -> None:
    """Serve a page that shows what runs now, its limits, what waits for your approval, and what was decided.

    It prints the URL to open. Whoever has that URL may see and change what you may; it is served on this machine alone unless you say
    otherwise. Needs the extra `ui`: pip install 'ravi-otel[ui]'.
    """
    for each in ("fastapi", "uvicorn"):
        try:
            load(each)
        except MissingExtraError as error:
            raise MissingExtraError(
                f"{each!r} is missing, which the page needs. Install it with: pip install 'ravi-otel[ui]'", name=each
            ) from error
    access = load("ravi_otel._ui.safety").access(
        port=port,
        host=host,
        token_file=token_file,
        public_url=public_url,
        read_only=read_only,
        user_header=user_header,
        trusted_proxies=trusted_proxies,
    )
    app = load("ravi_otel._ui.app")
    store = Store.place() if place is None else directory_of("--store", place)
    room = load("ravi_otel._ui.decisions")
    inbox = room.Inbox(queue_place()) if queue is None else room.Inbox(queue_at(queue), named="--queue")
    logs = directory_of("--audit", audit)
    desk = app.Desk(access, store, inbox, logs, jaeger_url, ledger)
    _see_that_it_is_free(host, port)
    click.echo(f"Open {access.url}")
    nothing_yet = "" if is_there(store) else ", where nothing is yet"
    click.echo(f"It shows the store {store}{nothing_yet}. Ctrl-C ends it.", err=True)
    if audit != _AUDIT and not is_there(logs):
        click.echo(f"No audit log is in {logs} yet.", err=True)
    app.server(desk).run()


def queue_at(given: str) -> str | Path:
    """Return a URL as it is, and the whole path of a file, which may be made later."""
    return given if is_queue_url(given) else path_of("--queue", Path(given))


def _see_that_it_is_free(host: str, port: int) -> None:
    """Raise ConfigurationError where the port cannot be had, before anything is said."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigurationError(f"port {port} is taken: another `ravi-otel ui` may run there. Name another with --port.") from error
        raise ConfigurationError(f"port {port} of --host {checks.show(host)} cannot be served: {error.strerror or error}.") from error
