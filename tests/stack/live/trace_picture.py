"""Draw a trace as Jaeger gives it: a tree on the left, and on a time axis a bar for each span."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from panel_pictures import DIM, EDGE, INK, NAMED, SMALL, Sheet

ROW, HEADING, NAMES, WIDTH = 19, 64, 330, 960
FIRST, LAST = 6, 9
"""How many spans of a long row of siblings are shown at its begin and at its end."""

EVENTS = {"ravi.limit.nearing": ("orange", "80 % of the budget used"), "ravi.limit.exceeded": ("red", "budget exceeded")}
COLORS = {"chat": "green", "execute_tool": "purple"}


class Row(NamedTuple):
    """Be one line: its depth, the spans that it stands for, and the text beside its bar."""

    depth: int
    spans: Sequence[dict[str, Any]]
    title: str
    note: str


def rows(spans: Sequence[dict[str, Any]]) -> Iterator[Row]:
    """Give the lines of the tree; the middle of a long row of siblings is one line."""
    known = {span["spanID"] for span in spans}
    children: dict[str | None, list[dict[str, Any]]] = {}
    for span in sorted(spans, key=lambda each: each["startTime"]):
        parent = next((ref["spanID"] for ref in span["references"] if ref["spanID"] in known), None)
        children.setdefault(parent, []).append(span)

    def below(parent: str | None, depth: int) -> Iterator[Row]:
        siblings = children.get(parent, [])
        for number, span in enumerate(siblings):
            if len(siblings) > FIRST + LAST and FIRST <= number < len(siblings) - LAST:
                if number == FIRST:
                    yield _folded(siblings[FIRST:-LAST], depth)
                continue
            yield Row(depth, [span], span["operationName"], _note(span))
            yield from below(span["spanID"], depth + 1)

    yield from below(None, 0)


def _folded(spans: Sequence[dict[str, Any]], depth: int) -> Row:
    names = [span["operationName"] for span in spans]
    counted = ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))
    return Row(depth, spans, f"… {counted}", "")


def _note(span: dict[str, Any]) -> str:
    has = span["attributes"]
    if has.get("ravi.limit.decision") == "denied" and has.get("gen_ai.operation.name") == "chat":
        return f"refused: {has['error.type']}"
    if "gen_ai.usage.input_tokens" in has:
        return f"{has['gen_ai.usage.input_tokens']:,} + {has['gen_ai.usage.output_tokens']:,} tokens, ${has['ravi.usage.cost_usd']:.3f}"
    return f"{has['error.type']}" if "error.type" in has else ""


def _color(span: dict[str, Any]) -> str:
    has = span["attributes"]
    if has.get("ravi.limit.decision") == "denied":
        return NAMED["red"]
    return NAMED[COLORS.get(has.get("gen_ai.operation.name", ""), "blue")]


def draw(spans: Sequence[dict[str, Any]], title: str) -> Sheet:
    """Draw a whole trace."""
    lines = list(rows(spans))
    sheet = Sheet(WIDTH, HEADING + ROW * len(lines) + 14)
    left, top, width, height = sheet.card((0, 0, WIDTH, HEADING + ROW * len(lines) + 12), title)
    start = min(span["startTime"] for span in spans)
    total = max(span["startTime"] + span["duration"] for span in spans) - start
    across = width - NAMES - 8

    def at(moment: float) -> float:
        return left + NAMES + (moment - start) / total * across

    for part in range(5):
        x = at(start + total * part / 4)
        sheet.bar((x, top + 14, 0.6, height - 16), EDGE)
        sheet.write(x, top + 6, f"{total * part / 4 / 1e6:.0f} s", DIM, ha="left" if part < 4 else "right")
    for number, row in enumerate(lines):
        y = top + 26 + ROW * number
        sheet.write(left + 14 * row.depth, y, row.title, DIM if len(row.spans) > 1 else INK)
        for span in row.spans:
            begin, end = at(span["startTime"]), at(span["startTime"] + span["duration"])
            sheet.bar((begin, y - 5, max(2.0, end - begin), 10), _color(span), 0.55 if len(row.spans) > 1 else 1.0)
        _events(sheet, row, y, at)
        _beside(sheet, row.note, y, at(row.spans[0]["startTime"]), at(row.spans[0]["startTime"] + row.spans[0]["duration"]))
    return sheet


def _beside(sheet: Sheet, note: str, y: float, begin: float, end: float) -> None:
    """Write beside a bar, where there is room."""
    if end + 6 * len(note) < WIDTH - 16:
        sheet.write(end + 6, y, note, DIM, SMALL - 0.5)
    elif end - begin < WIDTH / 2:
        sheet.write(begin - 6, y, note, DIM, SMALL - 0.5, ha="right")


def _events(sheet: Sheet, row: Row, y: float, at: Any) -> None:
    """Mark a limit's events on a span."""
    for span in row.spans:
        for log in span["logs"]:
            name = next((field["value"] for field in log["fields"] if field["key"] == "event"), "")
            if name in EVENTS:
                color, _ = EVENTS[name]
                sheet.bar((at(log["timestamp"]) - 1.5, y - 8, 3, 16), NAMED[color])
