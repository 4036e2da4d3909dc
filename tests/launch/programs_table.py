"""Print what becomes of programs of every kind under the launcher, beside what they do without it.

    python tests/launch/programs_table.py

Ends with 0 when each was attached, and did the same as without us, or was said not to be attached; else with 1.
"""

import sys
import tempfile
from pathlib import Path

from kinds import ATTACHED, UNATTACHED
from launched import Desk

from ravi_otel.testing import ScriptedLLM, Text

HEADINGS = ("program", "attached", "status alone", "launched", "same output", "sent alone", "launched", "counted", "holds")


def row(kind, attached):
    with ScriptedLLM(lambda _: Text("hello there")) as server, tempfile.TemporaryDirectory() as place:
        desk = Desk(server, Path(place))
        command = kind(desk)
        alone = desk.alone(*command)
        before = desk.sent
        ours = desk.launch(*command, flags=["--limit", "requests=1000"])
        sent = desk.sent - before
        counted = [budget["used"] for budget in ours.run["budgets"]]
        said = "NOT in force" not in ours.report
        same = ours.out == alone.out
        holds = same and said is attached and ours.status == (alone.status if attached else 5) and counted == ([before] if attached else [])
        name = kind.__name__.replace("_", " ")
        shown = [name, "yes" if said else "said not to be", alone.status, ours.status, same, before, sent, *(counted or ["?"])]
        return [*map(str, shown), "yes" if holds else "NO"]


def main():
    rows = [row(kind, attached) for kinds, attached in ((ATTACHED, True), (UNATTACHED, False)) for kind in kinds]
    widths = [max(len(line[at]) for line in [HEADINGS, *rows]) for at in range(len(HEADINGS))]
    for line in [HEADINGS, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    return 0 if all(line[-1] == "yes" for line in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
