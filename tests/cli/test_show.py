from __future__ import annotations

import json
import os

import pytest


@pytest.fixture
def run(shelf):
    budget = {"scope": "run", "scope_id": "x", "scope_name": "desk", "limit": "tokens", "threshold": 100, "used": 90, "held": 0}
    rest = {"remaining": 10, "ratio": 0.9, "denied": 3, "events": ["limit_nearing", "limit_exceeded"]}
    made = shelf.add("desk", outcome="limited", status=4, budgets=(budget | rest,), notes=("The program was ended.",))
    at = shelf.agent(made, "clerk")
    shelf.call(made, (1_210, 80), 0.25, parent=at)
    return made


def test_the_latest_run_is_shown_as_a_tree_with_its_budgets(shelf, run):
    done = shelf("show")
    assert (done.exit_code, done.stderr) == (0, "")
    first, note, *_ = done.stdout.splitlines()
    assert first == f"{run.run_id}  desk  limited, exit status 4"
    assert note == "The program was ended."
    for words in ("run desk", "limit_tokens", "└─ agent clerk", "chat m-1", "1,210", "$0.2500", "90", "nearing, exceeded"):
        assert words in done.stdout


@pytest.mark.parametrize("cut", ["whole", "beginning", "end"])
def test_a_run_is_found_by_its_id_or_an_end_of_it(shelf, run, cut):
    other = shelf.add("other", ago=-5).run_id  # of the same second, so that only what is drawn tells the two apart
    alike = next(at for at, (mine, its) in enumerate(zip(run.run_id, other, strict=True)) if mine != its)
    asked = {"whole": run.run_id, "beginning": run.run_id[: alike + 1], "end": run.run_id[alike:]}[cut]
    assert f"{run.run_id}  desk" in shelf("show", asked).stdout


@pytest.mark.parametrize("asked", ["nonsense", "2", "", "../..", "\x1b[31m"])
def test_a_run_that_is_none_or_several_is_a_sentence(shelf, run, asked):
    shelf.add("other")
    done = shelf("show", asked)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: RUN=")
    assert len(done.stderr.splitlines()) == 1
    assert "\x1b" not in done.stderr


def test_json_is_the_same_as_the_reports(shelf, run):
    document = json.loads(shelf("show", "--json").stdout)
    assert [node["type"] for node in document["nodes"]] == ["run", "agent", "call"]
    assert document["limits"][0]["denied"] == 3


def test_a_store_without_a_run_is_a_sentence(shelf):
    done = shelf("show")
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert "holds no run" in done.stderr


@pytest.mark.parametrize("width", [40, 80, 200])
def test_hostile_names_and_notes_stay_where_they_are(shelf, width):
    name = "ev\x1b[31mil\u202e\n\r[bold]x[/]" + "y" * 300
    made = shelf.add(name, notes=(name,))
    shelf.call(made, parent=shelf.agent(made, name), model=name)
    done = shelf("show", width=width)
    assert done.exit_code == 0
    assert all(char == "\n" or char.isprintable() for char in done.stdout)


def test_half_written_and_foreign_lines_are_said_below_the_tree(shelf, run):
    with (run.path / "4711-9a2c.traces.jsonl").open("a") as file:
        file.write('hello\n{"resourceSpans": [{"sco')
    held = shelf.files()
    done = shelf("show")
    assert "2 lines of the stored run could not be read, and are left out." in done.stdout
    assert "1,210" in done.stdout
    assert shelf.files() == held


def test_a_run_of_ten_thousand_calls_is_folded(shelf):
    made = shelf.add()
    shelf.call(made)
    (path,) = made.files()
    line = path.read_text()
    at = json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["spanId"]
    path.write_text("".join(line.replace(at, f"{number:016x}") for number in range(1, 10_001)))
    done = shelf("show")
    assert len(done.stdout.splitlines()) < 15
    assert "… 4,996 more chat m-1" in done.stdout
    assert "Not shown, past the first 5,000 entries: 5,001 calls." in done.stdout
    assert "300,000" in done.stdout


def test_json_says_what_the_report_of_the_run_says(shelf, run):
    document = json.loads(shelf("show", "--json").stdout)
    assert (document["run_id"], document["name"], document["outcome"]) == (run.run_id, "desk", "limited")
    assert (document["exit_status"], document["program_status"], document["observe"]) == (4, 4, False)
    assert (document["said"], document["directory"]) == (["The program was ended."], str(run.path))
    assert document["ended"] - document["started"] == pytest.approx(2.0)


def test_a_run_that_nobody_saw_end_is_lost_and_its_limits_are_shown_as_unknown(shelf):
    shelf.add(
        outcome="running", seconds=None, status=None, launcher={"pid": 2**22, "began": "x", "host": "y"}, limits=({"limit": "tokens=20k"},)
    )
    (path,) = [run.path for run in shelf.store.runs()]
    old = path.stat().st_mtime - 3 * 24 * 3600
    for each in (*path.iterdir(), path):
        os.utime(each, (old, old))
    done = shelf("show")
    assert done.stdout.splitlines()[0].endswith("lost")
    (line,) = [line for line in done.stdout.splitlines() if "20,000" in line]
    assert line.split()[-4:] == ["?", "?", "?", "?"]
    document = json.loads(shelf("show", "--json").stdout)
    assert (document["outcome"], document["limits"][0]["used"], document["limits"][0]["denied"]) == ("lost", None, None)


@pytest.mark.parametrize("width", [40, 120])
def test_a_run_that_was_only_observed_says_so(shelf, width):
    budget = {"scope": "run", "scope_name": "desk", "limit": "tokens", "threshold": 100, "used": 190, "held": 0, "ratio": 1.9, "denied": 3}
    shelf.add(observe=True, budgets=(budget,))
    shown = " ".join(shelf("show", width=width).stdout.split())
    assert "only observed: nothing was refused" in shown
    assert "would be denied" in shown


def test_a_run_without_a_readable_manifest_is_called_that(shelf, run):
    shelf.add("other")
    (run.path / "run.json").write_text('{"run_id": "')
    done = shelf("show", run.run_id)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == f"Error: {run.run_id} holds no readable run.json. `ravi-otel runs` lists what can be shown.\n"


def test_refusals_by_the_same_limit_are_folded_in_whichever_words(shelf):
    made = shelf.add()
    for at in range(12):
        attributes = {
            "ravi.status": "refused",
            "ravi.limit.kind": "requests",
            "ravi.limit.scope": "run",
            "gen_ai.request.model": f"m-{at % 2}",
        }
        words = "3 + 1 > 3" if at % 2 else "3 of 3 used"
        shelf.span(made, {"gen_ai.operation.name": "chat"} | attributes, status={"code": 2, "message": words})
    assert "… 11 more refused" in shelf("show").stdout


def test_processes_that_did_alike_are_folded(shelf):
    made = shelf.add()
    shelf.call(made)
    (path,) = made.files()
    line = path.read_text()
    at = json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["spanId"]
    for number in range(1, 10):
        path.with_name(f"{number}-ab.traces.jsonl").write_text(line.replace(at, f"{number:016x}"))
    assert "more processes" in shelf("show").stdout


@pytest.mark.parametrize(("outcome", "reason"), [("ok", "limit_requests"), ("limited", "store_lost")])
def test_a_run_ends_in_the_tree_as_its_span_says_whatever_its_program_made_of_that(shelf, outcome, reason):
    run = shelf.add("nightly", outcome=outcome)
    told = {"ravi.run.id": run.run_id, "ravi.status": "stopped", "ravi.stop_reason": reason}
    shelf.span(run, {"gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": "nightly", "ravi.scope.id": "s"} | told, kind=1)
    assert f"run nightly  {reason}" in shelf("show").stdout
