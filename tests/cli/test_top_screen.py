from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time

import pytest
from live_actors import Actor, limit, run, scope
from textual.color import Color

from ravi_otel.cli.top_screen.dialogs import Confirm, RaiseLimit
from ravi_otel.cli.top_screen.screen import TopScreen
from ravi_otel.cli.top_screen.tree import Tree
from ravi_otel.cli.top_view.polling import Watch
from ravi_otel.local.store import Store

pytestmark = pytest.mark.anyio
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


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / ".ravi").root


@pytest.fixture
def actor(store):
    with contextlib.ExitStack() as stack:

        def enter(*runs, **more):
            one = Actor(store, *runs, **more)
            stack.callback(one.leave)
            return one

        yield enter


@pytest.fixture
def sit(store):
    @contextlib.asynccontextmanager
    async def sit(size=(150, 40), **more):
        watch = Watch(store)
        try:
            app = TopScreen(store, watch, **more)
            async with app.run_test(size=size) as pilot:
                yield Seat(app, pilot)
        finally:
            watch.close()

    return sit


def tree(**changes):
    """Be a run with two agents, the second in the first."""
    return run("nightly", scope("researcher", "nightly", **changes), scope("critic", "researcher"), limits=(limit(used=900),))


async def test_the_tree_of_a_process_is_shown_with_states_budgets_rates_and_last_events(actor, sit):
    actor(tree(status="paused", priority="high", cost_usd=None))
    async with sit() as seat:
        await seat.shows("agent critic", "1 process, 2 agents")
        (line,) = [line for line in seat.lines if "agent researcher" in line]
        assert " ".join(line.split()).endswith("agent researcher paused high 1m05 1,200 300 ? 12 - chat gpt-4.1-mini 2s")
        (line,) = [line for line in seat.lines if "run nightly" in line]
        assert "tokens    ███████░  90 % !" in line


async def test_an_empty_store_says_so_and_programs_appear_and_go_by_themselves(actor, sit):
    async with sit() as seat:
        await seat.shows("Nothing is running yet.", "0 processes")
        first = actor(run("nightly"), program="one.py")
        await seat.shows("run nightly", "one.py", "1 process")
        actor(run("daily"), program="two.py")
        await seat.shows("run daily", "2 processes")
        first.leave()
        await seat.until(lambda: "run nightly" not in seat.text and "run daily" in seat.text)


async def test_the_selection_stays_with_its_scope_while_others_come_and_go(actor, sit):
    one = actor(tree())
    async with sit() as seat:
        await seat.select("agent critic")
        one.say(
            run(
                "nightly", *(scope(f"new{at}", "nightly") for at in range(5)), scope("researcher", "nightly"), scope("critic", "researcher")
            )
        )
        await seat.shows("agent new4")
        assert "agent critic" in seat.selected
        one.say(run("nightly", scope("researcher", "nightly")))
        await seat.until(lambda: "agent new4" not in seat.text)
        assert "agent researcher" in seat.selected
        one.say()
        await seat.until(lambda: "run nightly" not in seat.text)
        assert "agent.py" in seat.selected


async def test_the_selection_is_kept_in_view(actor, sit):
    one = actor(run("nightly", *(scope(f"a{at:03}", "nightly") for at in range(100))))
    async with sit(size=(80, 24)) as seat:
        await seat.shows("agent a000")
        await seat.press("end")
        await seat.until(lambda: "agent a099" in seat.selected)
        assert "fullest limit" in seat.text
        await seat.press("pageup", "up")
        await seat.until(lambda: "agent a08" in seat.selected)
        one.say(run("nightly", scope("a099", "nightly")))
        await seat.until(lambda: "agent a099" in seat.text)
        await seat.press("home")
        await seat.until(lambda: "agent.py" in seat.selected)


@pytest.mark.parametrize(
    ("keys", "asked", "told"),
    [
        ("p", {"op": "pause"}, "agent critic is paused."),
        ("+", {"op": "reprioritize", "priority": "high"}, "agent critic is high now."),
        ("-", {"op": "reprioritize", "priority": "low"}, "agent critic is low now."),
        ("cy", {"op": "cancel", "reason": "cancelled in ravi-otel top"}, "agent critic was told to end."),
    ],
)
async def test_a_key_asks_the_process_and_says_what_came_of_it(keys, asked, told, actor, sit):
    one = actor(tree())
    async with sit() as seat:
        await seat.select("agent critic")
        await seat.press(*({"+": "plus", "-": "minus"}.get(key, key) for key in keys))
        await seat.shows(told)
        assert one.heard == [asked | {"scope_id": "critic"}]


async def test_a_paused_agent_is_resumed_with_the_same_key(actor, sit):
    one = actor(run("nightly", scope("critic", "nightly", status="paused")))
    async with sit() as seat:
        await seat.select("agent critic")
        await seat.press("p")
        await seat.shows("agent critic may go on.")
        assert one.heard == [{"op": "resume", "scope_id": "critic"}]


@pytest.mark.parametrize("answer", ["n", "escape", "q"])
async def test_nothing_is_cancelled_without_a_yes(answer, actor, sit):
    one = actor(tree())
    async with sit() as seat:
        await seat.select("run nightly")
        await seat.press("c")
        await seat.shows("Cancel run nightly of agent.py", "y yes   n no")
        await seat.press("enter", "x")
        assert isinstance(seat.app.screen, Confirm)
        await seat.press(answer)
        await seat.shows("Nothing was cancelled.")
        assert one.heard == []


async def test_a_limit_is_raised_from_the_value_that_counts(actor, sit):
    one = actor(run("nightly", limits=(limit("tokens", 100, 1_000), limit("cost", 0.45, 0.5))))
    async with sit() as seat:
        await seat.select("run nightly")
        await seat.press("l")
        await seat.shows("Raise which limit of run nightly?", "cost", "0.5")
        await seat.press("down", "enter")
        assert seat.app.screen.query_one("Input").value == "1000"
        await seat.press(*"20k", "enter")
        await seat.shows("tokens of run nightly is 20,000 now.")
        assert one.heard == [{"op": "set_limit", "scope_id": "nightly", "kind": "tokens", "value": 20_000}]


async def test_a_value_that_is_none_is_said_and_a_lower_one_is_asked_for_twice(actor, sit):
    one = actor(run("nightly", limits=(limit("cost", 0.45, 0.5),)))
    async with sit() as seat:
        await seat.select("run nightly")
        await seat.press("l")
        await seat.press(*"abc", "enter")
        await seat.shows("'abc' is no value for cost: write a number such as 2.50.")
        await seat.press("ctrl+u", *"0.25", "enter")
        await seat.shows("That is less than the $0.5000 of now. Enter again lowers cost.")
        assert one.heard == []
        await seat.press("enter")
        await seat.shows("cost of run nightly is $0.2500 now.")
        assert one.heard == [{"op": "set_limit", "scope_id": "nightly", "kind": "cost", "value": 0.25}]


async def test_a_limit_is_left_as_it_is_with_escape(actor, sit):
    one = actor(run("nightly", limits=(limit(),)))
    async with sit() as seat:
        await seat.select("run nightly")
        await seat.press("l")
        assert isinstance(seat.app.screen, RaiseLimit)
        await seat.press("escape")
        await seat.shows("No limit was changed.")
        assert one.heard == []


@pytest.mark.parametrize(
    ("changes", "key", "told"),
    [
        ({"priority": "critical"}, "plus", "agent critic is critical already."),
        ({"priority": "background"}, "minus", "agent critic is background already."),
        ({}, "l", "agent critic has no limits of its own."),
    ],
)
async def test_what_cannot_be_is_said_without_asking(changes, key, told, actor, sit):
    one = actor(run("nightly", scope("critic", "nightly", **changes)))
    async with sit() as seat:
        await seat.select("agent critic")
        await seat.press(key)
        await seat.shows(told)
        assert one.heard == []


@pytest.mark.parametrize("key", ["p", "plus", "minus", "c", "l"])
async def test_a_key_on_a_process_asks_to_select_what_is_in_it(key, actor, sit):
    one = actor(run("nightly"))
    async with sit() as seat:
        await seat.select("agent.py")
        await seat.press(key)
        await seat.shows("Select a run, an agent or a block first.")
        assert one.heard == []


async def test_the_processes_own_words_of_refusal_are_one_clean_line(actor, sit):
    one = actor(tree())
    one.refusal = "agent 'critic' is \x1b[2Jthe root\nand cannot be paused."
    async with sit() as seat:
        await seat.select("agent critic")
        await seat.press("p")
        await seat.shows("agent 'critic' is the root and cannot be paused.")


async def test_a_process_that_falls_silent_is_marked_and_holds_up_nobody(actor, sit):
    silent = actor(run("daily"), program="hung.py")
    lively = actor(run("nightly"), program="good.py")
    async with sit() as seat:
        await seat.shows("run daily", "run nightly")
        silent.hush()
        await seat.shows("has not answered for")
        assert "run daily" in seat.text
        lively.say(run("weekly"))
        await seat.shows("run weekly")
        await seat.select("run weekly")
        silent.speak()
        await seat.until(lambda: "has not answered" not in seat.text)


async def test_a_command_to_a_process_that_is_gone_is_a_sentence(actor, sit):
    one = actor(tree())
    async with sit() as seat:
        await seat.select("agent critic")
        seat.app.query_one(Tree).put = lambda rows: None  # what it showed last stays, as between two looks
        one.leave()
        await seat.press("p")
        await seat.shows(f"process {one.entry.pid} cannot be asked")


@pytest.mark.parametrize("size", [(20, 5), (40, 12), (60, 20), (80, 24), (250, 60)])
async def test_hostile_names_stay_in_their_lines_at_every_size(size, actor, sit):
    name = "ev\x1b[31mil\u202e\n[bold]x[/]漢字" + "y" * 200
    scopes = [scope(f"s{at}", f"s{at - 1}" if at else "nightly", name=name, last_event=name) for at in range(40)]
    actor(run("nightly", *scopes, name=name, limits=(limit(name), limit("tokens", 9, 0))), program=name)
    async with sit(size=size) as seat:
        await seat.shows("evil [bold]x[/]" if size[0] > 40 else "ev")
        await seat.press("down", "l")
        for each in ("escape", "c", "n", "question_mark", "escape", "end"):
            await seat.press(each)
            assert len(seat.lines) == size[1]
            assert all(char.isprintable() for line in seat.lines for char in line)
            assert all(len(line) <= size[0] for line in seat.lines)


async def test_another_width_lays_the_columns_out_anew(actor, sit):
    actor(tree())
    async with sit(size=(150, 30)) as seat:
        await seat.shows("agent critic", "last event", "priority")
        await seat.resize(60, 15)
        await seat.until(lambda: "last event" not in seat.text and "full" in seat.text)
        assert "90 % !" in seat.text
        assert "p pause" in seat.text


async def test_an_output_that_carries_ascii_alone_gets_ascii(actor, sit):
    actor(run("nightly", scope("müller", "nightly", limits=(limit(),)), limits=(limit(held=10),)))
    async with sit(ascii_only=True) as seat:
        await seat.shows("agent m?ller", "`-", "####")
        rows = [line for line in seat.lines if "agent" in line or "run" in line]
        assert all(line.isascii() for line in rows)


async def test_without_colour_the_marks_say_what_is_near_and_nothing_is_coloured(actor, sit, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    actor(run("nightly", scope("critic", "nightly", limits=(limit(used=1_000),)), limits=(limit(used=800),)))
    async with sit() as seat:
        await seat.shows(" 80 % ! ", "100 % !!")
        await seat.select("agent critic")
        strips = [strip.apply_filter(seat.app._filters[-1], Color(0, 0, 0)) for strip in seat.app.screen._compositor.render_strips()]
        painted = [segment.style for strip in strips for segment in strip if segment.style is not None]
        assert {color.name for style in painted for color in (style.color, style.bgcolor) if color is not None} == {"default"}


async def test_help_explains_every_key_that_is_bound(actor, sit):
    async with sit() as seat:
        await seat.press("question_mark")
        await seat.shows("pause an agent", "raise a limit", "q            leave")
        await seat.press("escape")
        await seat.until(lambda: "raise a limit" not in seat.text)


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_the_screen_is_left_with(key, sit):
    async with sit() as seat:
        await seat.press(key)
        await seat.until(lambda: seat.app._exit)


PROGRAM = """
import sys, time, openai, ravi_otel
from ravi_otel import CancellationError
ravi_otel.instrument()
try:
    with ravi_otel.run("nightly", limits=["requests=5"]) as run:
        with ravi_otel.agent("researcher") as agent:
            print("open", flush=True)
            sys.stdin.readline()
            print(agent.status, agent.priority.name, run.limits[0].limit.amount, flush=True)
            run.meta.cancellation.check()
except CancellationError as error:
    print(error)
"""


async def test_a_real_program_is_steered_from_the_screen(store, sit):
    environment = {**os.environ, "RAVI_STORE": str(store), "OPENAI_API_KEY": "any"}
    command = [sys.executable, "-c", PROGRAM]
    piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    with subprocess.Popen(command, **piped) as program:  # noqa: ASYNC220 - the test waits for it, and has nothing else to do
        assert program.stdout.readline() == "open\n"
        async with sit() as seat:
            await seat.select("agent researcher")
            await seat.press("plus")
            await seat.shows("agent researcher is high now.")
            await seat.select("run nightly")
            await seat.press("l", "ctrl+u", "7", "enter")
            await seat.shows("requests of run nightly is 7 now.", "0 of 7")
            await seat.press("c", "y")
            await seat.shows("run nightly was told to end.", "cancelled")
            program.stdin.write("\n")
            program.stdin.flush()
            assert program.stdout.readline() == "open HIGH 7\n"
            assert "cancelled in ravi-otel top" in program.stdout.read()
            await seat.shows("Nothing is running yet.")
        assert program.wait(30) == 0
