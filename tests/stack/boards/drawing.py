"""Draw boards with Grafana's own packages in a headless Chromium."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asking import LEAST_INTERVAL, Asking, Json, unfolded
from playwright.sync_api import Page, Route, sync_playwright

ROOT = Path(__file__).parents[3]
PAGE = "http://boards.test/"
HTML = '<!doctype html><html><body style="margin:0;background:#111217"></body></html>'
NO_NETWORK = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync")
SHOWN_PX = 1040
"""How much of a board stands on a screen of 1600 x 1200 below Grafana's own bars."""


def bundle() -> Path:
    """Return the page's script, which `scripts/boards.sh` builds; its styles stand beside it."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ravi-otel" / "boards"
    path = home / "board.js"
    assert path.exists(), f"{path} is not there: run `make boards`, which builds it"
    return path


class Artist:
    """Draw boards on a page, one at a time, with what `asking` finds."""

    def __init__(self, page: Page, asking: Asking):
        self._page = page
        self._asking = asking

    def draw(self, board: Json) -> list[dict[str, Any]]:
        """Draw a board as it opens; return what became of each of its panels."""
        intervals = self._page.evaluate("([board, least]) => window.intervals(board, least)", [board, LEAST_INTERVAL])
        return self._page.evaluate("board => window.draw(board)", self._asking.fill(board, intervals))

    def draw_whole(self, board: Json) -> list[dict[str, Any]]:
        """Draw a board with all of its rows open; return what became of each of its panels."""
        return self.draw(unfolded(board))

    def draw_unanswered(self, board: Json) -> list[dict[str, Any]]:
        """Draw a board none of whose questions had an answer, with all of its rows open."""
        empty = unfolded(board)
        for panel in empty["panels"]:
            panel |= {"frames": [], "lines": []}
        return self._page.evaluate("board => window.draw(board)", empty)

    def save(self, path: Path, height_px: int = SHOWN_PX) -> None:
        """Write what is drawn into a picture, as far down as a screen goes, or as the board goes where that is less."""
        path.parent.mkdir(parents=True, exist_ok=True)
        box = self._page.locator("#board").bounding_box()
        assert box is not None
        self._page.screenshot(path=path, clip=box | {"height": min(height_px, box["height"])}, full_page=True)


@contextlib.contextmanager
def blank_page(width: int) -> Iterator[Page]:
    """Start a browser and open a page that can draw; an error that its script raises fails whoever had it."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert program is not None, "there is no chromium on PATH: `make boards` installs it where it may"
    wrong: list[str] = []
    script = bundle()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(NO_NETWORK))
        page = browser.new_page(viewport={"width": width, "height": 1200})
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.route("**/*", _answer)
        page.goto(PAGE)
        page.add_style_tag(path=script.with_suffix(".css"))
        page.add_script_tag(path=script)
        yield page
        browser.close()
    assert wrong == []


def _answer(route: Route) -> None:
    """Answer for the page itself, and with nothing for fonts and pictures that Grafana's server would have."""
    if route.request.url == PAGE:
        route.fulfill(content_type="text/html", body=HTML)
    elif route.request.url.endswith(".svg"):
        route.fulfill(content_type="image/svg+xml", body='<svg xmlns="http://www.w3.org/2000/svg"/>')
    else:
        route.abort()
