"""Write the dashboards and the runbooks' pages, which link to them: `python -m dashboards.source`."""

from __future__ import annotations

from json import loads
from pathlib import Path
from typing import Final

from dashboards.source import budgets, calls, health, runbooks, runs

PLACE: Final = Path(__file__).resolve().parents[1]
MAKERS: Final = {"budgets": budgets.make, "calls": calls.make, "runs": runs.make, "health": health.make}


def files() -> dict[str, str]:
    """Return what the files of the dashboards hold, by name."""
    return {f"{name}.json": make().written() for name, make in MAKERS.items()}


def pages() -> dict[str, str]:
    """Return what the runbooks' pages hold, by name."""
    return runbooks.files({name: loads(text) for name, text in files().items()})


if __name__ == "__main__":
    for place, made in ((PLACE, files()), (runbooks.PLACE, pages())):
        for name, text in made.items():
            (place / name).write_text(text, encoding="utf-8")
            print(place / name)
