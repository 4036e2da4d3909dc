"""Take the page's pictures: every page, light and dark, at a desk, on a wide screen and on a phone: `make pictures KINDS=page`.

Programs of `scenes.py` work meanwhile, after `ravi-otel demo` has, in a store that holds a month. All pictures go into FOLDER
(`build/pictures`); those that the docs show, into docs/pictures/page. Names after FOLDER take those alone.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from approval_desk import until
from page_stage import Looking, Served, serving
from PIL import Image
from played import REFUNDS, SCENES, environment, playing
from playwright.sync_api import Browser, Page, expect, sync_playwright
from stored_runs import fill

from ravi_otel._local.store import Store

ROOT = Path(__file__).parents[3]
SHOWN = ROOT / "docs" / "pictures" / "page"
WINDOWS = {"desk": (1440, 900), "wide": (2560, 1440), "phone": (390, 844)}
PHONE = 640
THEMES = ("light", "dark")
COLOURS = 160
THERE = ".table, [role=treegrid], [role=table], .empty, .failed, .inbox, .whatif"
NO_NETWORK = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync")
DECISIONS = ("approve", "reject", "approve")


@dataclass(frozen=True)
class Shot:
    """Be one picture: what is opened, what is done before it is taken, and in which window and theme the docs show it."""

    name: str
    path: str
    ready: Callable[[Page], None] = lambda page: None
    docs: tuple[tuple[str, str], ...] = ()


def _is_there(page: Page) -> None:
    expect(page.get_by_role("link", name="Look at refund")).to_be_visible()


def _refused_call(page: Page) -> None:
    page.goto(page.url.partition("/runs")[0] + "/")
    page.get_by_role("link", name="Open call that researcher was refused").click()
    expect(page.get_by_text("said no").first).to_be_visible()


def _asked(page: Page) -> None:
    refund = page.get_by_role("link").filter(has_text="refund(order=881")
    expect(refund).to_be_visible()
    if page.viewport_size["width"] > PHONE:
        refund.click()
        expect(page.locator(".ask-main")).to_contain_text("881")


def _edited(page: Page) -> None:
    page.goto(page.url.partition("/approvals")[0] + "/")
    page.get_by_role("link", name="Look at refund").click()
    page.get_by_role("button", name="Edit…").click()
    page.get_by_label("New value of amount").fill("80.0")
    expect(page.get_by_role("button", name="Approve with amount 80.0")).to_be_enabled()


def _set_limit(page: Page) -> None:
    _is_there(page)
    page.keyboard.press("l")
    expect(page.get_by_role("dialog")).to_be_visible()


def _cancel(page: Page) -> None:
    _is_there(page)
    page.keyboard.press("x")
    expect(page.get_by_role("dialog")).to_be_visible()


def _keys(page: Page) -> None:
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()


def _found(page: Page) -> None:
    page.keyboard.press("Control+k")
    page.keyboard.type("tri")
    expect(page.get_by_role("option").first).to_be_visible()


def _compared(page: Page) -> None:
    rows = page.locator(".runs-body a.row")
    a, b = (rows.nth(at).get_attribute("href").rpartition("/")[2] for at in (0, 1))
    page.goto(f"{page.url.partition('/runs')[0]}/compare?a={a}&b={b}")
    expect(page.get_by_role("cell").first).to_be_visible()


def _tried(page: Page) -> None:
    page.get_by_label("Value", exact=True).fill("0.5")
    page.get_by_label("Value", exact=True).scroll_into_view_if_needed()
    expect(page.locator(".hist")).to_be_visible()


SHOTS = (
    Shot("now", "/", _is_there, (("desk", "light"), ("desk", "dark"), ("phone", "light"))),
    Shot("now-set-limit", "/", _set_limit),
    Shot("now-cancel", "/", _cancel),
    Shot("now-keys", "/", _keys),
    Shot("find", "/", _found),
    Shot("runs", "/runs", docs=(("desk", "light"),)),
    Shot("runs-refused", "/runs?status=refused&since=7d"),
    Shot("runs-none", "/runs?user=nobody"),
    Shot("run", "/runs", _refused_call, (("desk", "light"),)),
    Shot("spend", "/spend?since=7d&by=user,model", docs=(("desk", "light"),)),
    Shot("spend-by-tool", "/spend?since=30d&by=tool"),
    Shot("limits", "/limits", docs=(("desk", "light"),)),
    Shot("limits-tried", "/limits", _tried),
    Shot("approvals", "/approvals", _asked, docs=(("desk", "light"),)),
    Shot("approval-edited", "/approvals", _edited, (("phone", "light"),)),
    Shot("audit", "/audit", docs=(("desk", "light"),)),
    Shot("compare", "/runs", _compared),
    Shot("nowhere", "/nowhere"),
)
EMPTY = ("now", "runs", "spend", "limits", "approvals", "audit")


def past(served: Served) -> None:
    """Have a month behind: what is made up, then the demo and refunds that a person has decided about."""
    fill(Store.open(served.store), 320, 16_000)
    command = partial(subprocess.run, check=True, env=environment(served.store), stdout=subprocess.DEVNULL)
    ours = [sys.executable, "-m", "ravi_otel"]
    command([*ours, "demo"])
    with playing(served.store, REFUNDS):
        for act in DECISIONS:
            command([*ours, "approvals", act, _one_that_waits(served), "--comment", "checked against the invoice"])


def _one_that_waits(served: Served) -> str:
    return until(served.desk.inbox.waiting, 30)[0].id


@contextlib.contextmanager
def stage(place: Path) -> Iterator[Served]:
    """Serve the page in a directory of its own, so that pictures name what is in it as whoever works there would."""
    place.mkdir()
    with contextlib.chdir(place), serving(Path()) as served:
        yield served


class Album:
    """Keep pictures in a folder, with few colours, and those of the docs beside them."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.tight: list[str] = []

    def take(self, looking: Looking, shot: Shot, window: str, theme: str) -> None:
        """Open, prepare, take, and note what does not fit into the window."""
        page = looking.open(shot.path)
        expect(page.locator(THERE).first).to_be_visible()
        shot.ready(page)
        page.evaluate("() => document.fonts.ready")
        path = self.place / f"{shot.name}-{window}-{theme}.png"
        page.screenshot(path=path)
        _with_few_colours(path)
        if not looking.fits():
            self.tight.append(path.name)
        if (window, theme) in shot.docs:
            first = (window, theme) == shot.docs[0]
            more = "" if first else f"-{window if window != 'desk' else theme}"
            shutil.copy(path, SHOWN / f"{shot.name}{more}.png")


def _with_few_colours(path: Path) -> None:
    """Write a picture again in few colours: those that are there most often, and those that are unlike them, as a state's shape may be."""
    with Image.open(path) as opened:
        pixels = np.asarray(opened.convert("RGB")).astype(np.int32)
    codes, places, often = np.unique(pixels @ (65536, 256, 1), return_inverse=True, return_counts=True)
    colours = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=1)
    kept = list(np.argsort(-often)[: COLOURS // 2])
    away = np.full(len(colours), np.inf)
    nearest = np.zeros(len(colours), dtype=np.uint8)
    for place in range(min(COLOURS, len(colours))):
        if place == len(kept):
            kept.append(int(np.argmax(away)))
        far = ((colours - colours[kept[place]]) ** 2).sum(axis=1)
        nearest[far < away] = place
        away = np.minimum(away, far)
    drawn = Image.fromarray(nearest[places].reshape(pixels.shape[:2]), mode="P")
    drawn.putpalette(colours[kept].astype(np.uint8).tobytes())
    drawn.save(path, optimize=True)


def looks(browser: Browser, served: Served) -> Iterator[tuple[str, str, Looking]]:
    """Open each window in each theme."""
    for window, (width, height) in WINDOWS.items():
        for theme in THEMES:
            looking = Looking(browser, served, theme=theme, width=width, height=height)
            yield window, theme, looking
            looking.context.close()
            for said in looking.complaints():
                print(f"{window}, {theme}: {said}", file=sys.stderr)


def main() -> int:
    """Take all pictures, and print what they weigh."""
    album = Album(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "pictures").absolute())
    only = set(sys.argv[2:])
    for place in (album.place, SHOWN):
        place.mkdir(parents=True, exist_ok=True)
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory(prefix="rp") as root, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(NO_NETWORK))
        if not only or "empty" in only:
            with stage(Path(root) / "empty") as served:
                for window, theme, looking in looks(browser, served):
                    for name in EMPTY:
                        album.take(looking, Shot(f"{name}-empty", "/" if name == "now" else f"/{name}"), window, theme)
        with stage(Path(root) / "desk") as served:
            past(served)
            with playing(served.store, *SCENES):
                looking = Looking(browser, served)
                expect(looking.open().get_by_text("waits for approval").first).to_be_visible(timeout=60_000)
                expect(looking.page.get_by_text("refused 3 calls").first).to_be_visible(timeout=60_000)
                looking.context.close()
                for window, theme, looking in looks(browser, served):
                    for shot in SHOTS:
                        if not only or shot.name in only:
                            album.take(looking, shot, window, theme)
        browser.close()
    for path in sorted(SHOWN.glob("*.png")):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")
    for name in album.tight:
        print(f"{name} is wider than its window", file=sys.stderr)
    return 1 if album.tight else 0


if __name__ == "__main__":
    sys.exit(main())
