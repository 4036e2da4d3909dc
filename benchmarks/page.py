"""Measure the budgets of the page and of the store, and print them as a table with goals: in under six minutes on a quiet machine.

    python benchmarks/page.py [--into docs/performance.md] [--parts writing,questions,page,open,size]

A store of 10,000 runs and 1,000,000 calls is filled once, for its questions and for the page that is loaded over it. A browser is Debian's
Chromium. Times of threads and processes are those that the processor worked; only what a person waits for is wall time.
"""

from __future__ import annotations

import argparse
import gzip
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import followed
import store
import stored_runs
from pages import printed_into
from playwright.sync_api import Page, expect, sync_playwright

from ravi_otel._local.store import Store

ROOT = Path(__file__).parents[1]
sys.path.insert(1, str(ROOT / "tests"))  # after this folder: both have a module of that name

from page_stage import Looking, serving  # noqa: E402 - the tests' own tools
from page_times import SPANS, TIMES, answered_after, fill_a_huge_run, longest_frame, there_after  # noqa: E402 - the tests' own tools

EVENTS = 20
NO_NETWORK = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync")
AGENTS = """
import sys, time
import ravi_otel

ravi_otel.instrument()
with ravi_otel.run("watched"):
    print(flush=True)
    for name in sys.stdin:
        with ravi_otel.agent(name.strip()):
            print(time.time(), flush=True)
            sys.stdin.readline()
"""
SEEN = """
name => new Promise(done => {
  const shown = () => document.querySelector('[role=treegrid]')?.textContent.includes(name);
  const look = all => { if (shown()) { all.disconnect(); requestAnimationFrame(() => done(Date.now())); } };
  const watch = new MutationObserver((_, all) => look(all));
  watch.observe(document.body, {subtree: true, childList: true, characterData: true});
  look(watch);
})
"""

Line = tuple[str, str, str]
Part = Callable[["Places"], Iterator[Line]]


class Places:
    """Hold folders for the stores of one measurement, and fill the large one when it is first asked for."""

    def __init__(self, root: Path, runs: int, calls: int) -> None:
        self._root = root
        self.runs, self.calls = runs, calls
        self._large: Path | None = None

    def new(self, name: str) -> Path:
        """Return an empty folder."""
        place = self._root / name
        place.mkdir()
        return place

    def large(self) -> Path:
        """Return the folder whose store has so many runs and calls."""
        if self._large is None:
            self._large = self.new("large")
            stored_runs.fill(Store.open(self._large / ".ravi"), self.runs, self.calls)
        return self._large


def writing(places: Places) -> Iterator[Line]:
    """Tell the store of calls, without content and with it."""
    for content in (False, True):
        found = store.measure(places.calls // 5, content=content, say=lambda line: print(line, file=sys.stderr))
        what = "with what was said" if content else "without content"
        yield f"a call written, {what}: our thread", "" if content else "≤ 20 µs", f"{found['thread_us']:.1f} µs"
        yield f"… the caller's, {what}", "≤ 3 µs", f"{found['caller_us']:.2f} µs"


def questions(places: Places) -> Iterator[Line]:
    """Ask what the terminal and the page ask."""
    asked = list(stored_runs.questions(Store.open(places.large() / ".ravi")))
    for each in asked:
        print(f"{each.worked:9.1f} ms of {each.most:5,}  {each.name}  ({each.passed:,.1f} ms passed)", file=sys.stderr)
    pages = [each for each in asked if each.name.startswith("a page of")]
    sums = [each for each in asked if each.most == stored_runs.ROLLED_UP and each not in pages]
    rest = [each for each in asked if each.most == stored_runs.ELSE]
    for what, some in (("a page of runs", pages), ("what is kept rolled up", sums), ("everything else", rest)):
        slowest = max(some, key=lambda each: each.worked)
        typical = statistics.median(each.worked for each in some)
        told = f"{typical:.0f} ms, the slowest {slowest.worked:.0f} ms ({slowest.name})"
        yield f"{what}, {len(some)} questions", f"≤ {slowest.most:,} ms", told


def page(places: Places) -> Iterator[Line]:
    """Look at the page: loaded over the large store, scrolled over a run of 100,000 spans, and told of something new."""
    with browser() as look:
        with serving(places.large()) as served:
            looking = look(served)
            there = [_loaded(looking, "/runs", "/api/runs") for _ in range(TIMES + 1)][1:]
            yield f"first useful paint, {places.runs:,} runs", "≤ 1,000 ms", f"{statistics.median(there):.0f} ms"
            yield "longest frame while they scroll", "≤ 100 ms", f"{longest_frame(looking.page, 'Runs'):.0f} ms"
            looking.context.close()
        with serving(places.new("huge")) as served:
            fill_a_huge_run(served.store, "huge")
            looking = look(served)
            shown = looking.open("/runs/huge")
            expect(shown.get_by_role("treegrid", name="Calls").get_by_text("agent 0")).to_be_visible(timeout=120_000)
            expect(shown.get_by_role("treegrid", name="Calls")).to_have_attribute("aria-rowcount", f"{SPANS}", timeout=120_000)
            yield "a run of 100,000 spans: its first lines", "≤ 2 s", f"{answered_after(shown, '/api/runs/huge?most=') / 1000:.1f} s"
            yield "… all of it", "", f"{answered_after(shown, '/api/runs/huge') / 1000:.1f} s"
            yield "longest frame while it scrolls", "≤ 100 ms", f"{longest_frame(shown, 'Tree and waterfall'):.0f} ms"
            looking.context.close()
        with serving(places.new("now")) as served:
            looking = look(served)
            late = sorted(_told(looking.open("/"), served.store))
            told = f"{statistics.median(late):.0f} ms, the latest of {len(late)} {late[-1]:.0f} ms"
            yield "from an event to the page", "≤ 500 ms", told
            looking.context.close()


def _loaded(looking: Looking, path: str, answered: str) -> float:
    shown = looking.open(path)
    expect(shown.get_by_role("table", name="Runs").get_by_role("row").nth(5)).to_be_visible()
    return there_after(shown, answered)


def _told(shown: Page, root: Path) -> Iterator[float]:
    """Have a program open agents one by one; yield how many milliseconds passed until the page showed each."""
    environment = os.environ | {"RAVI_STORE": str(root)}
    command = [sys.executable, "-c", AGENTS]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdout.readline()
        expect(shown.get_by_text("watched")).to_be_visible(timeout=20_000)
        for number in range(EVENTS):
            name = f"agent-{number:03}"
            shown.evaluate(f"name => {{ window.seen = ({SEEN})(name); }}", name)
            program.stdin.write(f"{name}\n")
            happened = float(program.stdout.readline())
            yield float(shown.evaluate("() => window.seen")) - happened * 1000
            program.stdin.write("\n")
        program.stdin.close()


def open_page(_: Places) -> Iterator[Line]:
    """Tell events to a page that is open."""
    found = followed.measure()
    yield "a program while a page is open: an event", "≤ 3 µs", f"{found.each_s * 1e6:.2f} µs"
    yield "… of a processor, at 200 events a second", "≤ 1 %", f"{max(0.0, found.share) * 100:.2f} %"


def size(_: Places) -> Iterator[Line]:
    """Add up what a browser loads."""
    files = (ROOT / "ravi_otel" / "_ui" / "static").iterdir()
    total = sum(len(gzip.compress(each.read_bytes(), 9)) for each in files)
    yield "all files of the page, gzipped", "≤ 200 kB", f"{total / 1000:.0f} kB"


PARTS: dict[str, Part] = {"writing": writing, "questions": questions, "page": page, "open": open_page, "size": size}


@contextmanager
def browser() -> Iterator[Callable[..., Looking]]:
    """Yield what opens a window before a served page."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        sys.exit("page.py: there is no Chromium: `sh scripts/browser.sh` installs it where it may.")
    with sync_playwright() as playwright:
        known = playwright.chromium.launch(executable_path=program, args=list(NO_NETWORK))
        yield lambda served: Looking(known, served)
        known.close()


def named(text: str) -> list[str]:
    """Return the parts that an option names."""
    asked = text.split(",")
    unknown = [each for each in asked if each not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no part {', '.join(unknown)}: it takes {', '.join(PARTS)}")
    return asked


def main() -> None:
    """Measure, and print the table or write it into a page."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--parts", type=named, default=list(PARTS), help=f"some of {', '.join(PARTS)}")
    options.add_argument("--runs", type=int, default=10_000)
    options.add_argument("--calls", type=int, default=1_000_000)
    options.add_argument("--into", type=Path, metavar="PAGE", help="put the table into this page, between its marks")
    given = options.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rb", ignore_cleanup_errors=True) as root, printed_into(given.into, "page"):
        places = Places(Path(root), given.runs, given.calls)
        lines = [line for part in given.parts for line in PARTS[part](places)]
        machine = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
        print(f"{time.strftime('%d %B %Y', time.gmtime()).lstrip('0')}: {machine}, load {os.getloadavg()[0]:.1f} at the end\n")
        print("| | goal | measured |\n|---|---|---|")
        for what, goal, measured in lines:
            print(f"| {what} | {goal} | {measured} |")
    print(f"took {time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
