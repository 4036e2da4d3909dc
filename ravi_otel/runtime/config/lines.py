"""Find the lines of a TOML file on which its limits stand, which the parser does not tell; what cannot be told is not made up."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias, cast

Spot: TypeAlias = tuple[str | int, ...]
"""Where in a document: `("profiles", "ci", "limits", 0)`."""

_HEADER: Final = re.compile(r"\s*(\[\[?)([^\[\]]*)\]\]?\s*(?:#.*)?$")
_KEY: Final = re.compile(r"""\s*(?:"([^"\\]*)"|'([^']*)'|([\w-]+))\s*=""")
_QUOTED: Final = re.compile(r"""(?:"[^"\\]*"|'[^']*')""")


def dotted(spot: Spot) -> str:
    """Write a spot as people do: `profiles.ci.limits[0]`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in spot).removeprefix(".")
    return text if text.isprintable() else ascii(text)


def toml_lines(text: str, content: Mapping[str, object]) -> dict[Spot, int]:
    """Give the lines that can be told: a text stands where it stands once, tables in their order, a tool in its section."""
    rows = text.split("\n")
    headers = [(number, found[1], _plain(found[2])) for number, row in enumerate(rows, 1) if (found := _HEADER.match(row))]
    once = _once(rows)
    lines: dict[Spot, int] = {}
    for spot, listed in _lists(content):
        tables = [number for number, mark, name in headers if mark == "[[" and name == ".".join(map(str, spot))]
        for index, each in enumerate(listed):
            line = tables[index] if len(tables) == len(listed) else once.get(each) if isinstance(each, str) else None
            if line is not None:
                lines[*spot, index] = line
    for spot in _tools(content):
        lines |= _keys_below(rows, [(number, name) for number, _, name in headers], spot)
    return lines


def _plain(header: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in header.split("."))


def _once(rows: list[str]) -> dict[str, int | None]:
    once: dict[str, int | None] = {}
    for number, row in enumerate(rows, 1):
        for written in _QUOTED.findall(row):
            once[written[1:-1]] = None if written[1:-1] in once else number
    return once


def _keys_below(rows: list[str], headers: list[tuple[int, str]], spot: Spot) -> dict[Spot, int]:
    """Give the lines of the keys of one section, up to the next one."""
    lines: dict[Spot, int] = {}
    for at, (begin, name) in enumerate(headers):
        if name == ".".join(map(str, spot)):
            end = headers[at + 1][0] - 1 if at + 1 < len(headers) else len(rows)
            for number in range(begin, end):
                if found := _KEY.match(rows[number]):
                    lines[*spot, next(each for each in found.groups() if each is not None)] = number + 1
    return lines


def _parts(content: Mapping[str, object]) -> Iterator[tuple[Spot, Mapping[str, object]]]:
    """Give the file itself, and each of its profiles."""
    yield (), content
    for name, profile in _table(content.get("profiles")).items():
        yield ("profiles", name), _table(profile)


def _lists(content: Mapping[str, object]) -> Iterator[tuple[Spot, list[object]]]:
    """Give every list of limits, and its place."""
    for spot, part in _parts(content):
        if isinstance(limits := part.get("limits"), list):
            yield (*spot, "limits"), cast("list[object]", limits)
        for name, agent in _table(part.get("agents")).items():
            if isinstance(agent, list):
                yield (*spot, "agents", name), cast("list[object]", agent)
            elif isinstance(limits := _table(agent).get("limits"), list):
                yield (*spot, "agents", name, "limits"), cast("list[object]", limits)


def _tools(content: Mapping[str, object]) -> Iterator[Spot]:
    for spot, part in _parts(content):
        if _table(part.get("tools")):
            yield (*spot, "tools")


def _table(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else {}
