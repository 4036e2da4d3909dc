"""What the commands that read the store print of the same programs stays what is written in golden/, letter by letter.

`RAVI_WRITE=1 python -m pytest tests/cli/test_golden.py` writes it anew: look at the difference, and say what is meant in the changelog.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import warm_starts
from click.testing import CliRunner

from ravi_otel._cli.entry import commands
from ravi_otel.policy import Usage
from ravi_otel.testing import Failure, Request, ScriptedLLM, Text, Vector

HERE = Path(__file__).parent / "golden"
sys.path.insert(0, str(HERE))
from normal import Names, document, live, table  # noqa: E402 - beside the outputs

FINAL = {"x-should-retry": "false"}


class Scripted:
    """Answer as the prompt says, and hold the ones back that ask for it."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def __call__(self, request: Request):
        if "messages" not in request.body:
            return Vector(8)
        word, *figures = request.body["messages"][-1]["content"].split()
        if word == "used":
            given, taken, cached = (int(each) for each in (figures[0], figures[1], figures[3] if len(figures) > 2 else 0))
            return Text("Done.", usage=Usage(given, taken, cached_input_tokens=cached))
        if word == "total":
            return Text("Done.", usage={"total_tokens": int(figures[0])})
        if word == "fails":
            return Failure(int(figures[0]), "no more", headers=FINAL)
        if word == "held":
            self.asked.set()
            return Text("late", think_s=600)
        return Text("It is on its way to you.", usage="missing")


class Shop:
    """Launch the programs one after the other, and call commands on what they leave."""

    def __init__(self, root: Path, server: ScriptedLLM) -> None:
        self.root = root
        self.store = root / ".ravi"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAVI_", "OTEL_", "PYTHON"))}
        self.environ = kept | {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "any", "TERM": "dumb", "COLUMNS": "100"}
        self.known: dict[str, str] = {}

    def command(self, program: str, *flags: str) -> list[str]:
        ours = [sys.executable, "-m", "ravi_otel", "run", "--policy", str(HERE / "policy.toml"), *flags, "--"]
        return [*ours, *([sys.executable, str(HERE / "programs" / f"{program}.py")] if program else ["true"])]

    def launch(self, name: str, program: str, *flags: str, status: int = 0) -> None:
        done = warm_starts.run(self.command(program, "--name", name, *flags), cwd=self.root, env=self.environ, session=True)
        assert done.returncode == status, done.stderr
        self.meet(name)

    def meet(self, name: str) -> None:
        """Call the run that nobody knows yet by this name."""
        (new,) = {each["run_id"] for each in json.loads(self.ask("runs", "--json", "-n", "99").stdout)} - set(self.known)
        self.known[new] = name

    def ask(self, *arguments: str, width: int = 150):
        given = {"COLUMNS": str(width), "NO_COLOR": "1"}
        return CliRunner().invoke(commands, [*arguments, "--store", str(self.store)], env=given)

    def listed(self, name: str):
        return next(each for each in json.loads(self.ask("runs", "--json").stdout) if each["run_id"] == self.id(name))

    def nodes(self, name: str):
        return json.loads(self.ask("show", self.id(name), "--json").stdout)["nodes"]

    def until(self, condition) -> None:
        """Wait for what a process writes meanwhile."""
        ring, left = threading.Event(), 30.0
        while not condition() and left > 0:
            ring.wait(0.05)
            left -= 0.05
        assert condition()

    def id(self, name: str) -> str:
        (found,) = [run_id for run_id, known in self.known.items() if known == name]
        return found


@pytest.fixture
def shop(tmp_path):
    script = Scripted()
    with ScriptedLLM(script) as server:
        shop = Shop(tmp_path, server)
        shop.launch("desk", "desk", "--tag", "stage=test")
        shop.launch("unknown", "unknown", "--tag", "stage=test")
        shop.launch("runaway", "runaway", "--limit", "tokens=1500", "--after-limit", "refuse")
        shop.launch("uncaught", "uncaught", "--limit", "requests=3", status=4)
        shop.launch("observed", "runaway", "--limit", "cost=0.0005usd", "--observe")
        shop.launch("batch", "batch", status=3)
        shop.launch("again", "batch", status=3)
        shop.launch("unattached", "", "--limit", "tokens=5", status=5)
        unlaunched = [sys.executable, str(HERE / "programs" / "unlaunched.py")]
        served = warm_starts.run(unlaunched, cwd=tmp_path, env=shop.environ | {"RAVI_STORE": str(shop.store)}, session=True)
        assert served.returncode == 0, served.stderr
        shop.meet("unlaunched")
        command = shop.command("waits", "--name", "waits", "--limit", "tokens=5k")
        with subprocess.Popen(command, cwd=tmp_path, env=shop.environ, start_new_session=True) as waiting:
            assert script.asked.wait(60)
            shop.meet("waits")
            shop.until(lambda: "open" in [node["status"] for node in shop.nodes("waits") if node["type"] == "call"])
            shop.waiting = waiting
            yield shop


def printed(shop: Shop) -> dict[str, str]:
    """Call every command, and give what it printed by the name of its file."""
    places = {str(shop.root): "<root>", str(HERE): "<golden>", sys.executable: "<python>"}
    texts: dict[str, str] = {}

    def keep(file: str, *arguments: str, width: int = 150) -> None:
        done = shop.ask(*arguments, width=width)
        names = Names(shop.known, places)
        write = document if file.endswith("json") else live if file == "top-once" else table
        said = f"[standard error]\n{table(names, done.stderr)}" if done.stderr else ""
        called = " ".join("ID" if argument in shop.known else argument for argument in arguments)
        if file == "runs-while-one-runs":  # how long it has run so far
            texts.update(
                {file: f"$ ravi-otel {called}   [{width} columns]\n" + re.sub(r"≥\d+\.\d", "≥<seconds>", write(names, done.stdout))}
            )
            return
        texts[file] = f"$ ravi-otel {called}   [{width} columns, status {done.exit_code}]\n{write(names, done.stdout)}{said}"

    keep("top-once", "top", "--once")
    keep("top-json", "top", "--json")
    keep("runs-while-one-runs", "runs", "-n", "1")
    (program,) = json.loads(shop.ask("top", "--json").stdout)
    for process in (shop.waiting.pid, program["pid"]):
        os.kill(process, signal.SIGKILL)
    shop.waiting.wait(60)
    shop.until(lambda: shop.listed("waits")["outcome"] == "lost")
    keep("runs", "runs")
    keep("runs-80", "runs", width=80)
    keep("runs-two", "runs", "-n", "2")
    keep("runs-json", "runs", "--json")
    for name in dict.fromkeys(shop.known.values()):
        keep(f"show-{name}", "show", shop.id(name))
        keep(f"show-{name}-json", "show", "--json", shop.id(name))
    keep("show-desk-60", "show", shop.id("desk"), width=60)
    keep("cost", "cost")
    for by in ("model", "agent", "session"):
        keep(f"cost-by-{by}", "cost", "--by", by)
        keep(f"cost-by-{by}-csv", "cost", "--by", by, "--csv")
    for tag in ("team", "stage", "nothing"):
        keep(f"cost-tag-{tag}", "cost", "--tag", tag)
    keep("cost-tag-team-csv", "cost", "--tag", "team", "--csv")
    keep("cost-since", "cost", "--since", "1d")
    keep("suggest", "suggest")
    keep("suggest-agent", "suggest", "--agent", "worker", "--headroom", "50")
    keep("suggest-name", "suggest", "--name", "batch")
    keep("prune-dry", "prune", "--older-than", "0s", "--dry-run")
    keep("prune-size", "prune", "--keep-bytes", "0")
    keep("prune", "prune", "--older-than", "0s")
    keep("runs-none", "runs")
    return texts


def test_the_commands_that_read_print_what_is_written(shop):
    texts = printed(shop)
    if os.environ.get("RAVI_WRITE"):
        for file, text in texts.items():
            (HERE / f"{file}.txt").write_text(text, encoding="utf-8")
    written = {path.stem: path.read_text(encoding="utf-8") for path in HERE.glob("*.txt")}
    assert sorted(written) == sorted(texts)
    differences = [
        line
        for file, text in texts.items()
        for line in difflib.unified_diff(
            written[file].splitlines(), text.splitlines(), f"{file} (written)", f"{file} (printed)", lineterm=""
        )
    ]
    assert not differences, "\n".join(differences)
