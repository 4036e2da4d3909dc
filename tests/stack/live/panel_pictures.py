"""Draw panels as Grafana shows them, into SVG files: stats, tables, lines and bars on cards, dark, so that any page can hold them."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

PAGE, CARD, EDGE, INK, DIM = "#111217", "#181b1f", "#2c3235", "#d8d9e6", "#a3a9b8"
NAMED = {"green": "#73bf69", "orange": "#ff9830", "red": "#f2495c", "blue": "#8ab8ff", "purple": "#ca95e5", "yellow": "#f2cc0c"}
LINES = [NAMED[name] for name in ("yellow", "blue", "purple", "green", "orange", "red")]
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "ravi", "font.family": "sans-serif", "font.size": 10.0, "text.parse_math": False}
BIG, HEAD, SMALL = 26, 11, 9
CHARACTER = 0.58
"""How wide a letter is, of its height: what a column needs."""

Box = tuple[float, float, float, float]
"""Left, top, width and height, in points, from the upper left corner."""

Span = tuple[float, float]
"""A time and a value, or two times, in seconds since 1970."""


def in_words(value: str | float, unit: str) -> str:
    """Write a value in a unit of Grafana's."""
    if isinstance(value, str):
        return value
    if unit == "percentunit":
        return f"{value:.0%}".replace("%", " %")
    if unit == "currencyUSD":
        return f"${value:,.2f}"
    if unit == "s":
        return f"{value:.1f} s" if value < 90 else f"{value / 60:.0f} min"
    return f"{value:,.0f}" if value == round(value) else f"{value:,.3g}"


def step_color(value: float, thresholds: Mapping[str, Any] | None) -> str:
    """Give the colour of a value by the panel's steps."""
    reached = [step["color"] for step in (thresholds or {}).get("steps", ()) if step["value"] is None or value >= step["value"]]
    return NAMED.get(reached[-1], INK) if reached else INK


class Sheet:
    """Be a picture of so many points, on which cards are laid."""

    def __init__(self, width: float, height: float):
        self._size = (width, height)
        self.figure = Figure(figsize=(width / 72, height / 72), facecolor=PAGE)
        self.paper = self.figure.add_axes((0, 0, 1, 1))
        self.paper.set(xlim=(0, width), ylim=(height, 0))
        self.paper.axis("off")

    def save(self, path: Path) -> None:
        """Write the picture; letters stay letters, in whichever plain font the reader has."""
        with mpl.rc_context(STYLE):
            self.figure.savefig(path, format="svg", facecolor=PAGE, metadata={"Date": None, "Creator": None})
        text = path.read_text(encoding="utf-8")
        path.write_text("".join(f"{line.rstrip()}\n" for line in text.splitlines()), encoding="utf-8")

    def write(self, x: float, y: float, text: str, color: str = INK, size: float = SMALL, **more: Any) -> None:
        """Write a line whose middle is at a height."""
        self.paper.text(x, y, text, color=color, fontsize=size, va="center", **more)

    def bar(self, box: Box, color: str, alpha: float = 1.0) -> None:
        left, top, width, height = box
        self.paper.add_patch(Rectangle((left, top), width, height, color=color, alpha=alpha, linewidth=0))

    def card(self, box: Box, title: str) -> Box:
        """Lay a card with a title, and give the room on it."""
        left, top, width, height = box
        plate = FancyBboxPatch((left + 2, top + 2), width - 4, height - 4, boxstyle="round,pad=0,rounding_size=3", fc=CARD, ec=EDGE, lw=0.8)
        self.paper.add_patch(plate)
        self.write(left + 12, top + 17, title, size=HEAD, weight="bold")
        return (left + 12, top + 30, width - 24, height - 40)

    def stat(self, box: Box, panel: Mapping[str, Any], value: float | None) -> None:
        """Draw a panel that is one figure."""
        left, top, width, height = self.card(box, panel["title"])
        defaults = panel["fieldConfig"]["defaults"]
        shown = defaults.get("noValue", "none") if value is None else in_words(value, defaults["unit"])
        color = INK if value is None else step_color(value, defaults.get("thresholds"))
        self.write(left + width / 2, top + height / 2, shown, color, BIG, ha="center", weight="bold")

    def table(self, box: Box, panel: Mapping[str, Any], rows: Sequence[Mapping[str, str | float]]) -> None:
        """Draw a table; a column that is a gauge has a bar below its figure."""
        left, top, width, _ = self.card(box, panel["title"])
        unit = panel["fieldConfig"]["defaults"].get("unit", "short")
        own = {
            each["matcher"]["options"]: {one["id"]: one["value"] for one in each["properties"]}
            for each in panel["fieldConfig"]["overrides"]
        }
        columns = list(rows[0]) if rows else []
        cells = {name: [in_words(row[name], own.get(name, {}).get("unit", unit)) for row in rows] for name in columns}
        needs = [max(map(len, [name, *cells[name]])) + 2 for name in columns]
        x = left
        for name, need in zip(columns, needs, strict=True):
            room = need / sum(needs) * width
            self.write(x, top + 8, name, DIM, weight="bold")
            for number, row in enumerate(rows):
                y, value, color = top + 28 + 21 * number, row[name], INK
                if "thresholds" in own.get(name, {}) and isinstance(value, float):
                    color = step_color(value, own[name]["thresholds"])
                    self.bar((x, y + 7, room - 12, 3), EDGE)
                    self.bar((x, y + 7, (room - 12) * min(1.0, value), 3), color)
                self.write(x, y, cells[name][number], color)
            x += room

    def graph(self, box: Box, panel: Mapping[str, Any], lines: Sequence[tuple[str, Sequence[Span]]], span: Span) -> None:
        """Draw lines or stacked bars from a time to another, with a legend below."""
        left, top, width, height = self.card(box, panel["title"])
        below = 24 + 15 * max(1, len(lines))
        axes = self._axes((left + 36, top + 4, width - 40, height - below))
        defaults = panel["fieldConfig"]["defaults"]
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: in_words(float(value), defaults["unit"])))
        bars = defaults["custom"].get("drawStyle") == "bars"
        piled: dict[float, float] = {}
        for (_, points), color in zip(lines, LINES * 3, strict=False):
            at, values = [point[0] - span[0] for point in points], [point[1] for point in points]
            if bars:
                wide = min((b - a for a, b in itertools.pairwise(at)), default=5.0)
                axes.bar(at, values, wide * 0.9, [piled.get(each, 0.0) for each in at], color=color)
                piled |= {each: piled.get(each, 0.0) + value for each, value in zip(at, values, strict=True)}
            else:
                axes.plot(at, values, color=color, linewidth=1.6)
                axes.fill_between(at, values, color=color, alpha=0.08, linewidth=0)
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=defaults["unit"] == "none"))
        self._thresholds(axes, defaults)
        axes.set_xlim(0, span[1] - span[0])
        axes.set_ylim(bottom=0, top=max(axes.get_ylim()[1], max(piled.values(), default=0.0) * 1.1))
        for number, ((legend, points), color) in enumerate(zip(lines, LINES * 3, strict=False)):
            y = top + height - below + 33 + 15 * number
            self.bar((left, y - 2, 12, 4), color)
            self.write(left + 18, y, f"{legend or 'all'}, last {in_words(points[-1][1], defaults['unit'])}", DIM)

    def _axes(self, box: Box) -> Any:
        left, top, width, height = box
        across, down = self._size
        axes = self.figure.add_axes((left / across, 1 - (top + height) / down, width / across, height / down), facecolor=CARD)
        axes.tick_params(colors=DIM, labelsize=SMALL, length=0)
        axes.grid(color=EDGE, linewidth=0.6)
        axes.set_axisbelow(True)
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: str(dt.timedelta(seconds=round(value)))[2:]))
        return axes

    @staticmethod
    def _thresholds(axes: Any, defaults: Mapping[str, Any]) -> None:
        if defaults["custom"].get("thresholdsStyle", {}).get("mode") == "dashed":
            for step in defaults["thresholds"]["steps"]:
                if step["value"] is not None:
                    axes.axhline(step["value"], color=NAMED[step["color"]], linewidth=1, linestyle=(0, (4, 3)))
