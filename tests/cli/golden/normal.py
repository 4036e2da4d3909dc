"""Replace what differs from one time to the next in an output: ids, times, places; every figure that matters stays."""

from __future__ import annotations

import json
import re
from typing import Any

_RUN_ID = re.compile(r"\b[0-9]{8}T[0-9]{6}-[0-9a-f]{6}\b")
_WHEN = re.compile(r"\b(?:[0-9]{4}-)?[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}\b|(?<=  )[0-9]{2}[:-][0-9]{2}(?=  )")
_DATE = re.compile(r"\b20[0-9]{2}-[0-9]{2}-[0-9]{2}\b")
_SIZE = re.compile(r"\b[0-9][0-9.,]* (?:B|KiB|MiB)")
_TIME_LIMIT = re.compile(r'^.*"(?:agent\..*\.)?time=.*$', re.MULTILINE)
_MS = re.compile(r"(?:<1|\b[\d,]+) ms\b")
_AGE = re.compile(r"\b(?:\d+m)?\d+s\b")
_RATE = re.compile(r"(\$[\d.]+)  (?:\d+|-)  ")
_NAMELESS = re.compile(r"\brun [0-9a-f]{7}…")
_PID = re.compile(r"\(pid \d+\)")
_GAP = re.compile(r" {2,}")
_TIMES = {
    "at_unix_s",
    "duration_ms",
    "duration_s",
    "started",
    "ended",
    "started_unix_s",
    "age_s",
    "tokens_per_s",
    "uptime_s",
    "opened_unix_s",
    "last_event_age_s",
}
_IDS = {"scope_id", "run_id", "parent_id", "agent_id", "pid", "key", "trace_id", "call_id"}


class Names:
    """Give each id a name that is the same every time: the run's, or the first that was met."""

    def __init__(self, known: dict[str, str], places: dict[str, str]) -> None:
        self._known = known
        self._places = places
        self._met: dict[str, str] = {}

    def met(self, kind: str, value: object) -> str:
        """Name an id by when it was first met."""
        return self._known.get(str(value)) or self._met.setdefault(str(value), f"{kind} {len(self._met) + 1}")

    def text(self, text: str) -> str:
        """Name the runs and places in a text."""
        for place, name in self._places.items():
            text = text.replace(place, name)
        text = re.sub(r"\btrace [0-9a-f]{32}\b", "trace <trace>", text)
        text = _RUN_ID.sub(lambda found: f"<{self._known.get(found[0], '?')}>", text)
        for run_id, name in self._known.items():  # or a part that tells it apart, where there is little room
            part = run_id if "-" in run_id else run_id[:8]
            text = text.replace(run_id, f"<{name}>").replace(f"{part}  ", f"<{name}>  ")
            text = re.sub(rf"(?<![\w<]){run_id[-6:]}(?!\w)", f"<{name}>", text)
        return text


def table(names: Names, text: str) -> str:
    """Write a table without its times, and without the widths that hang on them."""
    lines = [_without_durations(line) for line in _timeless(text.splitlines())]
    whole = _TIME_LIMIT.sub("<time limit>", "\n".join(lines))
    whole = _SIZE.sub("<size>", _DATE.sub("<date>", _WHEN.sub("<when>", names.text(whole))))
    whole = _NAMELESS.sub("run <id>", _PID.sub("(pid <pid>)", _MS.sub("# ms", whole)))
    rules = [re.sub(r"[─-]{3,}", "---", line) for line in whole.splitlines()]
    return "".join(f"{_GAP.sub('  ', line).rstrip()}\n" for line in rules)


def live(names: Names, text: str) -> str:
    """Write what runs now without ages and rates."""
    return _RATE.sub(r"\1  #  ", _AGE.sub("#s", table(names, text)))


def _timeless(lines: list[str]) -> list[str]:
    """Blank the figures that stand below a head `ms`."""
    found: list[str] = []
    end = None
    for line in lines:
        if re.fullmatch(r" +ms +(?:tokens )?in .*", line):
            end = re.search(r"\bms\b", line).end()
        is_note = re.match(r"[│├└─|` ]*(?:!|x) ", line)
        if end is not None and not is_note and (figure := re.search(r"(?:<1|[\d,]+|\?)$", line[:end])):
            found.append(line[: figure.start()] + "#" + line[end:])
        else:
            found.append(line)
    return found


def _without_durations(line: str) -> str:
    """Blank the seconds at the end of a row of runs."""
    return re.sub(r" [\d,]+\.\d *$", " #", line) if _WHEN.search(line) or _RUN_ID.search(line) else line


def document(names: Names, text: str) -> str:
    """Write JSON without its times, and with names for its ids."""
    return json.dumps(_plain(names, json.loads(text), ""), indent=2, ensure_ascii=False) + "\n"


def _plain(names: Names, value: Any, key: str) -> Any:
    if isinstance(value, dict):
        return {each: _plain(names, inner, each) for each, inner in value.items()}
    if isinstance(value, list):
        return [_plain(names, each, key) for each in value]
    if value is None or isinstance(value, bool):
        return value
    if key in _TIMES:
        return f"<{key}>"
    if key in _IDS:
        return names.met(key, value)
    return names.text(value) if isinstance(value, str) else value
