"""The tree of agents as `Run.tree()` draws it: the living and the ended, small however many there were."""

import re
from contextvars import Context, copy_context

import pytest

import ravi_otel
from ravi_otel import Priority, SpawnBudget, SpawnTracker
from ravi_otel._runtime.family import MOST_BELOW, MOST_ENDED, MOST_LINES, _rough
from ravi_otel.testing import Text


def timeless(drawn):
    """Give the lines without the seconds in them."""
    return [re.sub(r"· [\d.]+ s", "· T s", line) for line in drawn.splitlines()]


def test_it_shows_who_is_under_whom_and_what_they_spent(client, ask):
    with ravi_otel.run("triage", run_id="r-1", spawn_budget=SpawnBudget(3)) as run, ravi_otel.agent("lead") as lead:
        ask(client)
        with pytest.raises(ValueError, match="x"), ravi_otel.agent("helper", agent_id="helper-1"):
            raise ValueError("x")
        with (
            ravi_otel.agent("low", priority=Priority.LOW),
            SpawnTracker.current().acquire("a"),
            Context().run(SpawnTracker.current().acquire, "b", Priority.HIGH),
        ):
            seen = run.tree()
        assert lead.status == "open"
    assert timeless(seen) == [
        "run 'triage' (id 'r-1') · open · T s · 1 call · 200 tokens · $0.20",
        "└── 'lead' · open · T s · 1 call · 200 tokens · $0.20",
        "    ├── 'helper' (id 'helper-1') · error · T s",
        "    └── 'low' · low · paused · T s",
    ]
    assert "└── 'lead' · ok · T s · 1 call" in timeless(run.tree())[1]


def test_a_line_has_at_most_80_columns_and_names_give_way(client, ask):
    with (
        ravi_otel.run("r" * 200, run_id="i" * 200) as run,
        ravi_otel.agent("root"),
        ravi_otel.agent("a" * 200, agent_id="\u202e" * 200),
        ravi_otel.agent("b" * 70, priority=Priority.CRITICAL),
    ):
        for _ in range(60):
            ask(client)
    lines = run.tree().splitlines()
    assert max(len(line) for line in lines) <= 80
    assert "· critical · ok · T s · 60 calls · 12.0k tokens · $12.00" in timeless(lines[3])[0]


def test_a_run_id_of_ours_gives_way_to_the_name_of_the_run(instrumented):
    with ravi_otel.run("nightly report of everything") as run:
        pass
    line = run.tree()
    assert line.startswith(f"run 'nightly report of everything' (id '{run.id[:12]}")
    assert "…')" in line
    assert len(line) <= 80


def test_figures_that_are_estimated_say_so_as_those_of_many_do(stage, client, ask):
    with ravi_otel.run("r") as run:
        with ravi_otel.agent("cut"):
            stage.answer = Text("one two three")
            list(client.chat.completions.create(model="gpt-5-mini", messages=[{"role": "user", "content": "Go."}], stream=True))
        with ravi_otel.agent("whole"):
            stage.answer = Text("ok", usage=(100, 100))
            ask(client)
    top, cut, whole = timeless(run.tree())
    assert re.search(r" · 2 calls · ~\d+ tokens · ~\$", top)
    assert re.search(r" · 1 call · ~\d+ tokens · ~\$", cut)
    assert whole.endswith(" · 1 call · 200 tokens · $0.20")


@pytest.mark.parametrize(("tokens", "shown"), [(9_999, "9999"), (12_345, "12.3k"), (1_000_000, "1.0M"), (10**16, "10000.0T")])
def test_counts_are_short(tokens, shown):
    assert _rough(tokens) == shown


def test_of_thousands_that_ended_the_last_are_shown_and_the_others_counted(instrumented):
    with ravi_otel.run("r") as run, ravi_otel.agent("lead") as lead:
        for number in range(1_000):
            with ravi_otel.agent(f"a{number}"):
                pass
        lines = run.tree().splitlines()
        assert len(lead.scope.node.children) <= MOST_ENDED
    assert len(lines) == 2 + MOST_BELOW
    assert "'a999'" in lines[-2]
    assert lines[-1].endswith(f"… {1_000 - (MOST_BELOW - 1)} more: {1_000 - (MOST_BELOW - 1)} ok")


def test_of_many_that_live_side_by_side_the_rest_is_counted(instrumented):
    def one(number):
        handle, context = ravi_otel.agent(f"a{number}"), copy_context()
        context.run(handle.__enter__)
        return handle, context

    with ravi_otel.run("r") as run:
        opened = [one(number) for number in range(MOST_BELOW + 70)]
        lines = run.tree().splitlines()
        for handle, context in opened:
            context.run(handle.__exit__, None, None, None)
    assert len(lines) == 1 + MOST_BELOW
    assert lines[-1] == "└── … 71 more: 71 open"


def test_of_many_that_live_one_below_the_other_some_are_not_drawn(instrumented):
    with ravi_otel.run("r") as run:
        handles = [ravi_otel.agent("deep") for _ in range(MOST_LINES + 20)]
        for handle in handles:
            handle.__enter__()
        lines = run.tree().splitlines()
        for handle in reversed(handles):
            handle.__exit__(None, None, None)
    assert len(lines) == MOST_LINES + 1
    assert lines[-1] == "… and more, which is not shown"
    assert run.tree().count("ok") == MOST_ENDED + 2


def test_a_run_inside_an_agent_is_drawn_where_it_is_and_by_itself(instrumented):
    with ravi_otel.run("outer") as outer, ravi_otel.agent("a"), ravi_otel.run("inner") as inner, ravi_otel.agent("b"):
        assert [line.split(" · ")[0].lstrip("└─ ").split(" (id")[0] for line in outer.tree().splitlines()] == [
            "run 'outer'",
            "'a'",
            "run 'inner'",
            "'b'",
        ]
        assert "'a'" not in inner.tree()


def test_names_that_move_the_cursor_are_drawn_quoted(instrumented):
    with ravi_otel.run("r") as run, ravi_otel.agent("a\u202eb"):
        assert all(line.isprintable() for line in run.tree().splitlines())


def test_an_agent_that_outlives_one_long_forgotten_is_drawn_further_up(instrumented):
    with ravi_otel.run("r") as run:
        left = ravi_otel.agent("left")
        with left:
            pass
        for _ in range(MOST_ENDED):
            with ravi_otel.agent("more"):
                pass
        left.scope.stranded = False
        assert left.scope.node.folded
        inner = ravi_otel.agent("late")
        with ravi_otel._current.Attachment(ravi_otel._current.with_leaf(left.scope)), inner:
            assert "├── 'late' · open" in run.tree() or "└── 'late' · open" in run.tree()
