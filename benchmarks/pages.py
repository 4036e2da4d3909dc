"""Put what a program prints into a page, in place of what it printed there before."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path


class _Both(io.StringIO):
    """Keep what is written, and show it at once on standard error: these programs take minutes."""

    def write(self, text: str) -> int:
        sys.stderr.write(text)
        return super().write(text)


@contextlib.contextmanager
def printed_into(page: Path | None, name: str) -> Iterator[None]:
    """Print as usual without a page; else between its marks `<!-- printed: NAME -->` and `<!-- /printed: NAME -->`.

    The page is written only when the body ends well; ValueError when it lacks the marks.
    """
    if page is None:
        yield
        return
    begin, end = f"<!-- printed: {name} -->", f"<!-- /printed: {name} -->"
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, closed, _ = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{page} has no place for {name}: write {begin} and {end} where the tables belong.")
    with contextlib.redirect_stdout(_Both()) as printed:
        yield
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n{printed.getvalue()}{end}{after}", encoding="utf-8")
