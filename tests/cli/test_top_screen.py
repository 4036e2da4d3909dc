"""What the screen of `ravi-otel top` shows."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import pytest
import warm_starts
from live_actors import limit, run, scope
from textual.color import Color
from top_seats import actors, seated, tree

from ravi_otel._cli.top_screen import Tree
from ravi_otel._local.store import Store

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / ".ravi").root


@pytest.fixture
def actor(store):
    with actors(store) as enter:
        yield enter


@pytest.fixture
def sit(store):
    return partial(seated, store)


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
        await seat.shows("Nobody listens here yet.", "0 processes")
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


async def test_what_ends_while_it_is_selected_stays_selected_and_marked_until_another_row_is(actor, sit):
    one = actor(run("nightly", scope("researcher", "nightly"), scope("critic", "researcher"), scope("other", "nightly")))
    async with sit() as seat:
        await seat.select("agent critic")
        one.say(run("nightly", scope("researcher", "nightly"), scope("other", "nightly")))
        await seat.until(lambda: "ended" in seat.selected)
        assert [line.partition("agent ")[2].split()[0] for line in seat.lines if "─ agent" in line] == ["researcher", "critic", "other"]
        assert "agent critic" in seat.selected
        await seat.press("down")
        await seat.until(lambda: "agent critic" not in seat.text)
        assert "agent other" in seat.selected
        one.leave()
        await seat.shows("Nobody listens here yet.")
        assert "agent other" in seat.selected
        assert "ended" in seat.selected


async def test_what_is_below_a_paused_agent_is_marked_down_to_the_last(actor, sit):
    scopes = (scope("a", "nightly", status="paused"), scope("b", "a"), scope("c", "b", status="paused"), scope("d", "nightly"))
    actor(run("nightly", *scopes))
    async with sit() as seat:
        await seat.shows("agent d")
        found = [" ".join(line.partition("agent ")[2].split()[1:3]) for line in seat.lines if "─ agent" in line]
        assert found == ["paused normal", "paused above", "paused normal", "open normal"]
        await seat.select("agent c")
        await seat.press("p")
        await seat.shows("agent c may go on. But an agent around it is paused, which stops it too.")


async def test_slots_that_are_all_taken_do_not_hide_the_limit_that_is_used_up(actor, sit):
    actor(run("nightly", limits=(limit("agents", 4, 4), limit("fan_out", 2, 2), limit("tokens", 100, 1_000))))
    async with sit() as seat:
        await seat.select("run nightly")
        await seat.shows("tokens    ░░░░░░░░  10 %", "agents       ████████████████ 100 %    4 of 4")
        assert "!!" not in seat.text


async def test_the_sentence_of_an_empty_store_is_whole_at_40_columns(sit):
    async with sit(size=(40, 20)) as seat:
        await seat.shows("its runs in this store appears by", "itself.")


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
    with warm_starts.start(command, **piped) as program:
        assert program.stdout.readline() == "open\n"
        async with sit() as seat:
            await seat.select("agent researcher")
            await seat.press("plus")
            await seat.shows("agent researcher is high now.")
            await seat.select("run nightly")
            await seat.press("l", "ctrl+u", "7", "enter")
            await seat.shows("The requests limit of run nightly is 7 now.", "0 of 7")
            await seat.press("c", "y")
            await seat.shows("run nightly was told to end.", "cancelled")
            program.stdin.write("\n")
            program.stdin.flush()
            assert program.stdout.readline() == "open HIGH 7\n"
            assert "cancelled in ravi-otel top" in program.stdout.read()
            await seat.shows("Nobody listens here yet.")
        assert program.wait(30) == 0
