"""Take the terminal's picture: `ravi-otel top` before the programs of `scenes.py`: `make pictures KINDS=terminal`."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
import time
from pathlib import Path

from played import SCENES, playing

from ravi_otel._cli.top_screen import TopScreen
from ravi_otel._local.live.client import Watch, rows

ROOT = Path(__file__).parents[3]
PICTURE = ROOT / "docs" / "pictures" / "terminal" / "top.svg"
SIZE = (132, 34)
STEPS_TO_RESEARCHER = 3
PATIENCE_S = 60.0
REFUSED = 3


def wait_for_the_story(store: Path) -> None:
    """Wait until it stands still: one agent was refused three times, another waits for a person, and all the others are there."""
    watch, end = Watch(store), time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < end:
            said = {row.scope.name: row.scope for row in rows(watch.look(1.0)) if row.scope is not None}
            is_there = {"researcher", "writer", "urgent-desk", "faq"} <= set(said)
            if is_there and said["researcher"].refused == REFUSED and said["writer"].waits_for == "approval":
                return
            time.sleep(0.2)
        raise SystemExit("the programs did not come to where they are to be seen")
    finally:
        watch.close()


async def screen(store: Path) -> str:
    """Return the screen as soon as it shows all there is to see."""
    watch = Watch(store)
    try:
        app = TopScreen(store, watch)
        async with app.run_test(size=SIZE) as pilot:
            await asyncio.to_thread(wait_for_the_story, store)
            await pilot.press("home", *["down"] * STEPS_TO_RESEARCHER)
            await pilot.pause(1.0)
            return app.export_screenshot(title="ravi-otel top", simplify=True)
    finally:
        watch.close()


def main() -> None:
    """Play, take, and keep the picture with the fonts of whoever looks at it."""
    with tempfile.TemporaryDirectory(prefix="rt") as place:
        os.chdir(place)  # the screen names the store as it was named to it
        store = Path(".ravi")
        store.mkdir(mode=0o700)
        with playing(store.absolute(), *SCENES):
            drawn = asyncio.run(screen(store))
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL), encoding="utf-8")
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
