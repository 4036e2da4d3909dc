"""A page with programs that run, requests that wait and an audit log, served as `ravi-otel ui` serves it, and a browser before it."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvicorn
from live_actors import Actor
from playwright.sync_api import Browser, BrowserContext, Page

from ravi_otel._ui import safety as _safety
from ravi_otel._ui.app import Desk, server
from ravi_otel._ui.decisions import Inbox

AXE = Path(__file__).parents[1] / "ui" / "node_modules" / "axe-core" / "axe.min.js"
HOSTILE = "<img src=x onerror=alert(1)>"


class Served:
    """Be a page that is served, with all that it shows in a folder of its own."""

    def __init__(self, root: Path, *, port: int = 0, token: str | None = None, queue: str | None = None, **options: Any) -> None:
        self.store = root / ".ravi"
        self.store.mkdir(parents=True, exist_ok=True)
        self.queue = self.store / "approvals.db"
        self.audit = root / "audit"
        self.listening = socket.socket()
        self.listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listening.bind(("127.0.0.1", port))
        self.port = self.listening.getsockname()[1]
        self.access = _safety.access(port=self.port, **options)
        if token is not None:
            self.access = replace(self.access, token=token)
        self.desk = Desk(self.access, self.store, Inbox(queue or self.queue), self.audit)
        self.server: uvicorn.Server | None = None
        self.actors: list[Actor] = []

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def actor(self, *runs: Any, **changes: Any) -> Actor:
        self.actors.append(Actor(self.store, *runs, **changes))
        return self.actors[-1]

    def start(self) -> None:
        self.server = server(self.desk)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listening]})
        self.thread.start()
        end = time.monotonic() + 20
        while not self.server.started:
            assert time.monotonic() < end, "the server did not start"
            time.sleep(0.005)

    def stop(self) -> None:
        if self.server is not None:
            self.server.should_exit = True
            self.thread.join()
        for each in self.actors:
            each.leave()
        self.listening.close()


def free_port() -> int:
    """Return a port on which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextlib.contextmanager
def serving(root: Path, **options: Any) -> Iterator[Served]:
    served = Served(root, **options)
    try:
        served.start()
        yield served
    finally:
        served.stop()


class Looking:
    """Be a browser's window that complains of every error, every refused load and every dialog of the page's scripts."""

    def __init__(self, browser: Browser, served: Served, *, theme: str = "light", width: int = 1440, height: int = 900) -> None:
        self.served = served
        self.wrong: list[str] = []
        self._refused = False
        self.context: BrowserContext = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=theme, reduced_motion="reduce", has_touch=width < 640
        )
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(10_000)
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: (self.wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("console", lambda said: self.wrong.append(f"{said.type}: {said.text}") if said.type == "error" else None)
        self.page.on("requestfailed", self._failed)

    def _failed(self, asked: Any) -> None:
        if not asked.url.endswith("/api/events") and "ERR_ABORTED" not in (asked.failure or ""):
            self.wrong.append(f"{asked.url}: {asked.failure}")

    def is_refused(self) -> None:
        """Say that the server refuses something in this test: the browser tells of every answer that is an error."""
        self._refused = True

    def complaints(self) -> list[str]:
        return [each for each in self.wrong if not (self._refused and "responded with a status of 4" in each)]

    def open(self, path: str = "/") -> Page:
        self.page.goto(f"{self.served.origin}{path}{'&' if '?' in path else '?'}token={self.served.access.token}")
        return self.page

    def accessible(self) -> list[str]:
        """Return what axe finds, one line each, with where."""
        self.page.evaluate(AXE.read_text())
        found = self.page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
        return [f"{each['id']}: {each['help']} at {[node['target'] for node in each['nodes']]}" for each in found["violations"]]

    def picture(self, name: str) -> None:
        folder = os.environ.get("RAVI_PICTURES")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=Path(folder) / f"{name}.png")

    def fits(self) -> bool:
        """Whether nothing makes the page wider than its window."""
        return self.page.evaluate("() => document.scrollingElement.scrollWidth <= innerWidth")
