"""Sit before the screen of `ravi-otel top`: press keys, and read what is on it."""

from __future__ import annotations

import contextlib
import time

from live_actors import Actor, limit, run, scope

from ravi_otel._cli.top_screen import TopScreen
from ravi_otel._local.live.client import Watch

_PATIENCE_S = 30


class Seat:
    """Sit before the screen: press keys, and read what is on it."""

    def __init__(self, app, pilot):
        self.app, self._pilot = app, pilot

    async def press(self, *keys):
        await self._pilot.press(*keys)

    async def until(self, condition):
        """Wait until it is true of the screen, and fail with what is there."""
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, self.text
            await self._pilot.pause(0.01)

    async def shows(self, *words):
        await self.until(lambda: all(each in self.text for each in words))

    async def resize(self, width, height):
        await self._pilot.resize_terminal(width, height)

    async def select(self, title):
        """Go down to the row that says so."""
        await self.shows(title)
        await self.press("home")
        for _ in range(50):
            if title in self.selected:
                return
            await self.press("down")
        raise AssertionError(self.text)

    @property
    def text(self):
        return "\n".join(self.lines)

    @property
    def lines(self):
        return ["".join(segment.text for segment in strip) for strip in self.app.screen._compositor.render_strips()]

    @property
    def selected(self):
        return next((line for line in self.lines if line.startswith("> ")), "")


@contextlib.contextmanager
def actors(store):
    """Give what lets processes into a store; they leave at the end."""
    with contextlib.ExitStack() as stack:

        def enter(*runs, **more):
            one = Actor(store, *runs, **more)
            stack.callback(one.leave)
            return one

        yield enter


@contextlib.asynccontextmanager
async def seated(store, size=(150, 40), **more):
    """Give a seat before the screen of a store."""
    watch = Watch(store)
    try:
        app = TopScreen(store, watch, **more)
        async with app.run_test(size=size) as pilot:
            yield Seat(app, pilot)
    finally:
        watch.close()


def tree(**changes):
    """Be a run with two agents, the second in the first."""
    return run("nightly", scope("researcher", "nightly", **changes), scope("critic", "researcher"), limits=(limit(used=900),))
