"""docs/export.md names every reason, variable and bound as the code has it, and its table says what it claims."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from ravi_otel._telemetry.export import Reason, processor, spool

PAGE = (Path(__file__).parents[1] / "docs" / "export.md").read_text(encoding="utf-8")


def rows() -> list[dict[str, str]]:
    table = PAGE.partition("<!-- printed: outage -->")[2].partition("<!-- /printed: outage -->")[0]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


def test_every_reason_is_explained():
    table = PAGE.partition("| reason | what was lost |")[2].partition("\n\n")[0]
    named = [name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1] if "|" in line else "")]
    assert sorted(named) == sorted(get_args(Reason))


def test_the_bounds_are_those_of_the_code():
    waiting, encoded = (sum(bounds.values()) >> 20 for bounds in (processor._WAITING_BYTES, processor._ENCODED_BYTES))
    assert f"at most {waiting} MiB wait as spans and log records, and {encoded} MiB as encoded batches" in " ".join(PAGE.split())


def test_the_variables_of_the_spool_are_listed():
    listed = re.findall(r"^\| `(RAVI_\w+)`", PAGE, re.MULTILINE)
    assert listed == [spool.SPOOL, spool.SPOOL_BYTES, spool.SPOOL_AGE_S]


def test_the_table_counts_every_loss_of_ours_and_the_spool_loses_nothing_to_an_outage():
    ours = [row for row in rows() if row["exported by"] != "stock SDK"]
    assert ours
    for row in ours:
        lost = int(row["lost"].replace(",", ""))
        counted = sum(int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", row["counted"]))
        assert counted >= lost, row
        if row["exported by"] == "with a spool" and row["the collector"].startswith("down for"):
            assert lost == 0, row
        if "65 MiB" not in row["the collector"]:  # there the program's own text is 65 MiB
            assert float(row["memory +MB"]) <= 64, row
