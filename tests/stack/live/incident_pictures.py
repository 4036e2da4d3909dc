"""Draw the pictures of docs/incident.md from what the servers answer: `python incident_pictures.py`, or `make pictures`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from incident_story import ALERTS, SERVICES, Played, exceeded, play_tamed, play_wild, told, whole_trace
from panel_answers import BAR_S, LINE_S, Asked, panel
from panel_pictures import Sheet
from stack_process import wait_for
from stack_servers import ROOT, Stack, running_stack
from trace_picture import draw

PLACE = ROOT / "docs" / "pictures" / "incident"
NOW = ("Fullest limit", "Near or over", "Calls refused", "Spent")
WIDTH = 960


def asked(stack: Stack, played: Played) -> Asked:
    """Look at the fleet alone, while it ran."""
    variables = {"service": "|".join(SERVICES), "environment": played.environment, "trace_service": "finance-agents"}
    tags = {"trace_tags": f"deployment.environment.name={played.environment}"}
    return Asked(stack, played.start_s, played.end_s + LINE_S, variables | tags)  # the last point is not left out


def alerts(look: Asked) -> Sheet:
    """Draw which alerts there were."""
    sheet, shown = Sheet(WIDTH, 250), panel("budgets.json", "Alerts over time")
    whole = Asked(look.stack, look.start_s, look.end_s + BAR_S, look.variables)  # nor is the last bar
    sheet.graph((0, 0, WIDTH, 250), shown, whole.lines(shown), (whole.start_s, whole.end_s))
    return sheet


def budgets(look: Asked) -> Sheet:
    """Draw the upper rows of Ravi / Budgets."""
    sheet, wide = Sheet(WIDTH, 560), WIDTH / len(NOW)
    for number, title in enumerate(NOW):
        shown = panel("budgets.json", title)
        sheet.stat((number * wide, 0, wide, 100), shown, look.number(shown))
    shown = panel("budgets.json", "Used against limit, worst first")
    sheet.table((0, 100, WIDTH, 150), shown, look.rows(shown))
    for number, title in enumerate(("Used against limit over time", "Refused, by kind and scope")):
        shown = panel("budgets.json", title)
        sheet.graph((number * WIDTH / 2, 250, WIDTH / 2, 310), shown, look.lines(shown), (look.start_s, look.end_s))
    return sheet


def spenders(look: Asked) -> Sheet:
    """Draw who spent the money, and the refused runs of Ravi / Runs and agents."""
    sheet = Sheet(WIDTH, 560)
    for number, title in enumerate(("Spent, by team", "Spent, by agent")):
        shown = panel("budgets.json", title)
        sheet.table((number * WIDTH / 2, 0, WIDTH / 2, 170), shown, look.rows(shown))
    shown = panel("runs.json", "Cost per hour, by agent")
    sheet.graph((0, 170, WIDTH, 260), shown, look.lines(shown), (look.start_s, look.end_s))
    shown = panel("runs.json", "Refused runs")
    sheet.table((0, 430, WIDTH, 130), shown, look.traces(shown))
    return sheet


def after(look: Asked) -> Sheet:
    """Draw the same fleet with the policy."""
    sheet, wide = Sheet(WIDTH, 270), WIDTH / len(NOW)
    for number, title in enumerate(NOW):
        shown = panel("budgets.json", title)
        sheet.stat((number * wide, 0, wide, 100), shown, look.number(shown))
    shown = panel("budgets.json", "Used against limit, worst first")
    sheet.table((0, 100, WIDTH, 170), shown, look.rows(shown))
    return sheet


def of_the_day(stack: Stack, played: Played) -> dict[str, Sheet]:
    """Draw what there was to see on the day."""
    trace_id = exceeded(stack)["trace_id"]
    look = asked(stack, played)
    shown = panel("runs.json", "Refused runs")
    wait_for(lambda: len(look.traces(shown)) == 3, "the three refused runs in Jaeger")
    title = f"finance-agents: invoke_workflow finance, trace {trace_id}"
    return {
        "alerts": alerts(look),
        "budgets": budgets(look),
        "spenders": spenders(look),
        "trace": draw(whole_trace(stack, trace_id), title),
    }


def save(sheets: dict[str, Sheet], place: Path) -> list[Path]:
    """Write pictures into a folder."""
    place.mkdir(parents=True, exist_ok=True)
    paths = [place / f"{name}.svg" for name in sheets]
    for path, sheet in zip(paths, sheets.values(), strict=True):
        sheet.save(path)
    return paths


def main() -> None:
    """Play the story, write its pictures, and print the page's table of alerts."""
    with running_stack() as stack:
        wait_for(
            lambda: {alert["labels"]["alertname"] for alert in stack.alerts()} <= {"RaviWatchdog"},
            "the end of alerts on the stack's own start",
        )
        day = play_wild(stack)
        sheets = of_the_day(stack, day)
        tamed = play_tamed(stack)
        sheets["after"] = after(asked(stack, tamed))
        for path in save(sheets, PLACE):
            print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")
        for name in ALERTS:
            alert = told(stack, name)
            print(f"| `{name}` | {alert['labels']['severity']} | {alert['annotations']['summary']} |")


if __name__ == "__main__":
    sys.exit(main())
