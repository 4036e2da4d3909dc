"""Write the dashboards: `python -m dashboards.source`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dashboards.source import budgets, calls, health, runs

PLACE: Final = Path(__file__).resolve().parents[1]
MAKERS: Final = {"budgets": budgets.make, "calls": calls.make, "runs": runs.make, "health": health.make}


def files() -> dict[str, str]:
    """Give what the files hold, by name."""
    return {f"{name}.json": make().written() for name, make in MAKERS.items()}


if __name__ == "__main__":
    for name, text in files().items():
        (PLACE / name).write_text(text, encoding="utf-8")
        print(PLACE / name)
