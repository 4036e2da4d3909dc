"""What became of each endpoint of each library, as one table."""

import re
import time
from importlib.metadata import version
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "http-clients.md"


HEADINGS = ("library", "version", "endpoint", "colour", "stream", "seen", "counted", "priced", "cut", "launched", "a refusal is raised as")


def today():
    """Give the day as the page writes it."""
    return time.strftime("%-d %B %Y")


def print_on_page(block, told):
    """Put something between the marks of a block of the page."""
    between = re.compile(rf"(?<=<!-- printed: {block} -->\n).*?(?=<!-- /printed: {block} -->)", re.DOTALL)
    PAGE.write_text(between.sub(lambda _: f"{told}\n", PAGE.read_text()))


class Table:
    """Note what a test has shown of a case; what no test has shown is empty."""

    def __init__(self):
        self._rows = {}

    def note(self, case, **shown):
        """Note what was shown."""
        self._rows.setdefault(case, {}).update(shown)

    def lines(self, cases):
        """Give the table of these cases, a line for each."""
        rows = [HEADINGS, *(self._row(case) for case in cases if case in self._rows)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]

    def write(self, cases):
        """Write the table into its page, with the day."""
        rows = [HEADINGS, ("---",) * len(HEADINGS), *(self._row(case) for case in cases)]
        print_on_page("providers", "\n".join([today(), "", *(f"| {' | '.join(row)} |" for row in rows)]))

    def write_newest(self, cases, failed):
        """Write which releases were the newest on this day, and how many of its tests failed."""
        libraries = dict.fromkeys(case.library for case in cases)
        versions = ", ".join(f"{name} {version(name)}" for name in libraries)
        print_on_page("newest", f"{today()}: {versions}; {failed or 'none'} of its tests failed.")

    def _row(self, case):
        shown = self._rows[case]
        stream = "stream" if case.stream else "whole"
        cut = shown.get("cut", "")
        marks = tuple("yes" if shown.get(name) else "" for name in ("seen", "counted", "priced"))
        launched = "yes" if shown.get("launched") else ""
        return (case.library, version(case.library), case.endpoint, case.colour, stream, *marks, cut, launched, shown.get("raises", ""))


TABLE = Table()
