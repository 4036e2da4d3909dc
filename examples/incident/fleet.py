"""Run a fleet of agents in which one goes wild: three teams, each a service and a process of its own, and a scripted model.

    python examples/incident/fleet.py                                            # what happened is kept in .ravi/
    RAVI_POLICY=examples/incident/policy.toml python examples/incident/fleet.py  # the same with a limit of the agent's own
    OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 OTEL_METRIC_EXPORT_INTERVAL=5000 python examples/incident/fleet.py --think 10

With `--think` the model takes so many seconds for each answer, so that there is something to watch. `docs/incident.md` tells the story.
"""

import argparse
import functools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import scripted_model

from ravi_otel.testing import ScriptedLLM

HERE = Path(__file__).parent
TEAMS = ("search", "support", "finance")


def work(team, *, url, store, run):
    """Run the service of a team to its end; it uses the variables of this process, but for its name, its store and its model."""
    own = {"OTEL_SERVICE_NAME": f"{team}-agents", "RAVI_STORE": f"{store}/{team}", "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "any"}
    command = [sys.executable, str(HERE / "team.py"), team]
    return run(command, env=os.environ | own, capture_output=True, text=True, timeout=900, check=True).stdout


def look(arguments, *, run):
    """Ask `ravi-otel` what happened, as anybody can afterwards."""
    print(f"\n$ ravi-otel {' '.join(arguments)}")
    command = [sys.executable, "-m", "ravi_otel", *arguments]
    print(
        run(command, env=os.environ | {"PYTHONIOENCODING": "utf-8"}, capture_output=True, text=True, timeout=60, check=True).stdout, end=""
    )


def main(arguments=None, run=subprocess.run):
    """Have every team do its tasks at once, and show what came of it."""
    parser = argparse.ArgumentParser(description="Run a fleet of agents in which one goes wild.")
    parser.add_argument("--think", type=float, default=0.0, metavar="SECONDS", help="how long the model takes for each answer")
    think_s = parser.parse_args(arguments).think
    store = os.environ.get("RAVI_STORE", ".ravi")
    with ScriptedLLM(functools.partial(scripted_model.answer, think_s=think_s)) as server, ThreadPoolExecutor() as pool:
        for told in pool.map(functools.partial(work, url=server.base_url, store=store, run=run), TEAMS):
            print(told, end="", flush=True)
        print(f"\nThe model was asked {len(server.requests)} times.")
    look(["show", "--store", f"{store}/finance"], run=run)


if __name__ == "__main__":
    main()
