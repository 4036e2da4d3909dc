"""Run a fleet of agents in which one goes wild: three teams, each a service and a process of its own, and a scripted model.

    python examples/incident/fleet.py                                            # what happened is kept in .ravi/
    RAVI_POLICY=examples/incident/policy.toml python examples/incident/fleet.py  # the same with a limit of the agent's own
    OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 OTEL_METRIC_EXPORT_INTERVAL=5000 python examples/incident/fleet.py --think 10

All teams use one store, as programs of one directory do: `ravi-otel runs`, `show` and `cost` read it there afterwards.
With `--think` the model takes so many seconds for each answer, so that there is something to watch. `docs/incident.md` tells the story.
"""

import argparse
import functools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import scripted_model

from ravi_otel.testing import ScriptedLLM

HERE = Path(__file__).parent
TEAMS = ("search", "support", "finance")
MOST_S = 3600


def seconds(written):
    """Read how long the model takes for an answer: an hour at most."""
    if not 0 <= float(written) <= MOST_S:
        raise argparse.ArgumentTypeError(f"{written} is not between 0 and {MOST_S} seconds")
    return float(written)


def environment():
    """Give the variables of this process, and the store where it and its teams keep what happened: programs need one to be named."""
    return os.environ | {"RAVI_STORE": os.environ.get("RAVI_STORE", "").strip() or ".ravi", "PYTHONIOENCODING": "utf-8"}


def work(team, *, url, run):
    """Run the service of a team to its end, and give its status; it prints what it does here."""
    own = {"OTEL_SERVICE_NAME": f"{team}-agents", "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "any"}
    return run([sys.executable, str(HERE / "team.py"), team], env=environment() | own).returncode


def look(*arguments, run, **how):
    """Ask `ravi-otel` what happened, as anybody can afterwards; its error is told by it, and ends this program."""
    done = run([sys.executable, "-m", "ravi_otel", *arguments], env=environment(), **how)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


def show(*arguments, run):
    """Ask it where everybody can read along."""
    print(f"\n$ ravi-otel {' '.join(arguments)}", flush=True)
    look(*arguments, run=run)


def main(arguments=None, run=subprocess.run):
    """Have every team do its tasks at once, and show what came of it."""
    parser = argparse.ArgumentParser(description="Run a fleet of agents in which one goes wild.")
    parser.add_argument("--think", type=seconds, default=0.0, metavar="SECONDS", help="how long the model takes for each answer")
    think_s = parser.parse_args(arguments).think
    began = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    with ScriptedLLM(functools.partial(scripted_model.answer, think_s=think_s)) as server, ThreadPoolExecutor() as pool:
        ended = dict(zip(TEAMS, pool.map(functools.partial(work, url=server.base_url, run=run), TEAMS), strict=True))
        asked = len(server.requests)
    failed = [f"{team} with status {status}" for team, status in ended.items() if status]
    if failed:
        sys.exit(f"Not every team could work: {', '.join(failed)}. What each of them said is above.")
    print(f"\nThe model was asked {asked} times.", flush=True)
    refused = ("runs", "--since", began, "--status", "refused", "--sort", "cost")
    show(*refused, run=run)
    dearest, *_ = json.loads(look(*refused, "--json", run=run, capture_output=True, text=True))
    show("show", dearest["run_id"], run=run)


if __name__ == "__main__":
    main()
