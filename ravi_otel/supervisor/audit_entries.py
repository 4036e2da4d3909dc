"""Read the entries of audit logs as a person reads them: what was asked, decided and done, when, in which run, and by whom."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from ravi_otel.policy._limits import format_public_amount
from ravi_otel.supervisor.audit import LIMIT_SET, SUFFIX
from ravi_otel.supervisor.audit_chain import entry_of, lines
from ravi_otel.supervisor.audit_verify import Verified

_DECIDED: Final = {"approve": "let through", "revise": "revised", "block": "blocked", "escalate": "escalated"}
Verdict = Literal["ok", "refused", "wait", "error", "paused", "run"]
_VERDICTS: Final[Mapping[str, Verdict]] = {
    "let through": "ok",
    "approved": "ok",
    "executed": "ok",
    "rejected": "refused",
    "blocked": "refused",
    "changed": "refused",
    "not run": "refused",
    "escalated": "wait",
    "failed": "error",
    "cancelled": "paused",
}
"""What became of a call, by the word for an entry; all others neither let through nor refuse."""

_ENDED: Final = {"refused": "not run", "error": "failed", "cancelled": "cancelled", "answered": "answered"}
"""What an `executed` is called that is not "ok": the gate writes one for every call that it judged, whatever became of it."""

_MOST_WORD: Final = 80
_MOST_SENTENCE: Final = 400
_SHOWN_APART: Final = frozenset({"n", "at", "what", "run_id", "agent_name", "tool", "op_id", "prev", "hash", "who", "approved"})


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a log as it may be shown: `says` is what it says besides who, when and which tool.

    `what` is what happened in one or two words, and `tone` whether that lets through or refuses. `who` is a person where `person` says
    so. `fits` says whether it follows from the line before, None of what comes after one that does not.
    """

    file: str
    number: int
    at: float | None
    run: str
    tool: str
    what: str
    tone: Verdict
    says: str
    who: str
    person: bool
    hash: str
    fits: bool | None

    def is_of(self, *, run: str = "", tool: str = "", person: str = "", what: str = "", text: str = "") -> bool:
        """Whether it is of this run, this tool, this person and this kind, and has the text in it; what is empty is not asked."""
        wanted = ((run, self.run), (tool, self.tool), (person, self.who), (what, self.what))
        if any(each and each != known for each, known in wanted):
            return False
        return text.casefold() in f"{self.says} {self.tool} {self.run} {self.who}".casefold()


def entries(verified: Verified, clean: Callable[[str, int], str]) -> list[Entry]:
    """Return the entries of a log that was verified, the oldest first; `clean` cuts a text, and takes out what must not reach a screen."""
    if not verified.path.name.endswith(SUFFIX):
        return []
    try:
        opened = os.open(verified.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        if verified.ok:
            raise
        return []  # its problem says so
    try:
        about = os.fstat(opened)
        read = list(lines(opened, 0, about.st_size)) if stat.S_ISREG(about.st_mode) else []
    finally:
        os.close(opened)
    return [_entry(verified, number, entry_of(line) or {}, clean) for number, line in enumerate(read, 1) if line.endswith(b"\n")]


def newest_first(every: list[Entry]) -> list[Entry]:
    """Return entries of any number of logs in the order in which a person looks for them."""
    return sorted(every, key=lambda entry: (-(entry.at or 0.0), entry.file, -entry.number))


def _entry(verified: Verified, number: int, entry: Mapping[str, Any], clean: Callable[[str, int], str]) -> Entry:
    what, bad = _text(entry, "what"), verified.bad_line == number
    person = _text(entry, "who") if what in ("approved", LIMIT_SET) else ""
    others = {"reviewed": "gate", LIMIT_SET: "the program"}.get(what, "")
    word = "changed" if bad else _word(entry, what)
    at, says = entry.get("at"), _limit if what == LIMIT_SET else _says
    return Entry(
        file=clean(verified.path.name, _MOST_SENTENCE),
        number=number,
        at=at if isinstance(at, (int, float)) and not isinstance(at, bool) else None,
        run=clean(_text(entry, "run_id"), _MOST_WORD),
        tool=clean(_text(entry, "tool"), _MOST_WORD),
        what=clean(word, _MOST_WORD),
        tone=_VERDICTS.get(word, "run"),
        says=clean(" ".join(verified.problems) if bad else says(entry), _MOST_SENTENCE),
        who=clean(person or _text(entry, "agent_name") or others, _MOST_WORD),
        person=bool(person),
        hash=clean(_text(entry, "hash"), 64),
        fits=True if verified.bad_line is None or number < verified.bad_line else False if bad else None,
    )


def _word(entry: Mapping[str, Any], what: str) -> str:
    """Return what happened in one or two words: of a review its decision, of an answer whether it counts, of an end how it ended."""
    if what == "approved" and not (entry.get("approved", True) and entry.get("permitted", True)):
        return "rejected"
    if what == "executed":
        return _ENDED.get(_text(entry, "status"), what)
    return _DECIDED.get(_text(entry, "decision"), what.replace("_", " "))


def _text(entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name)
    return value if isinstance(value, str) else ""


def _limit(entry: Mapping[str, Any]) -> str:
    """Write which limit was set from what to what."""
    of = " ".join(filter(None, (_text(entry, "scope"), _text(entry, "scope_name"))))
    before, now = (_amount(_text(entry, "kind"), entry.get(name)) for name in ("before", "now"))
    return f"{_text(entry, 'limit')} of {of}: {before} before, {now} now"


def _amount(kind: str, amount: object) -> str:
    return format_public_amount(kind, amount) if isinstance(amount, (int, float)) else "none"


def _says(entry: Mapping[str, Any]) -> str:
    """Write what an entry says besides who, when and which tool: the arguments, where they were kept."""
    arguments = entry.get("arguments")
    if isinstance(arguments, Mapping):
        told = {str(name): json.dumps(value) for name, value in cast("Mapping[object, Any]", arguments).items()}
    else:
        kept = {name: value for name, value in entry.items() if name not in _SHOWN_APART and value is not None}
        told = {name: value if isinstance(value, str) else json.dumps(value) for name, value in kept.items()}
    why = _text(entry, "stop_reason") if "stop_reason" not in told else ""
    return "; ".join(filter(None, (why, ", ".join(f"{name}={value}" for name, value in told.items()))))
