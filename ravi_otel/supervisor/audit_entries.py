"""Read the entries of audit logs as a person reads them: what was asked, decided and done, when, in which run, and by whom."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping, Sequence
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
_MOST_FIELD: Final = 2_000
_HASH_SHOWN: Final = 8
_SHOWN_APART: Final = frozenset(
    {
        *("n", "at", "what", "run_id", "agent_name", "tool", "op_id", "prev", "hash", "who", "approved", "args_sha256", "asked_sha256"),
        *("asked", "arguments", "decision", "reason", "stop_reason", "status", "comment", "identity", "permitted", "fits"),
    }
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a log as it may be shown: `says` is what it says besides who, when and which tool, `fields` all that is in it.

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
    fields: tuple[tuple[str, str], ...] = ()

    def is_of(self, *, run: str = "", tool: str = "", person: str = "", what: str = "", text: str = "") -> bool:
        """Whether it is of this run, this tool, this person and this kind, and has the text in it; what is empty is not asked."""
        wanted = ((run, self.run), (tool, self.tool), (person, self.who), (what, self.what))
        if any(each and each != known for each, known in wanted):
            return False
        written = " ".join(value for _, value in self.fields)
        return text.casefold() in f"{self.says} {self.tool} {self.run} {self.who} {written}".casefold()


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
    known = [entry_of(line) or {} for line in read if line.endswith(b"\n")]
    passed = _passed(known)
    return [_entry(verified, number, entry, clean, passed=number in passed) for number, entry in enumerate(known, 1)]


def _passed(known: Sequence[Mapping[str, Any]]) -> set[int]:
    """Return the numbers of reviews that escalated what a person had approved by then: the call went on, and nobody was asked again."""
    latest: dict[str, int] = {}
    passed: set[int] = set()
    for number, entry in enumerate(known, 1):
        call, what = _text(entry, "op_id"), entry.get("what")
        before: Mapping[str, Any] = known[latest[call] - 1] if call in latest else {}
        if what == "effective" and before.get("decision") == "escalate":
            passed.add(latest[call])
        latest[call] = number
    return passed


def newest_first(every: list[Entry]) -> list[Entry]:
    """Return entries of any number of logs in the order in which a person looks for them."""
    return sorted(every, key=lambda entry: (-(entry.at or 0.0), entry.file, -entry.number))


def _entry(verified: Verified, number: int, entry: Mapping[str, Any], clean: Callable[[str, int], str], *, passed: bool) -> Entry:
    what, bad = _text(entry, "what"), verified.bad_line == number
    person = _text(entry, "who") if what in ("approved", LIMIT_SET) else ""
    others = {"reviewed": "gate", LIMIT_SET: "the program"}.get(what, "")
    word = "changed" if bad else _DECIDED["approve"] if passed else _word(entry, what)
    at, says = entry.get("at"), _limit(entry) if what == LIMIT_SET else _says(entry, what, passed=passed)
    agent = "nobody" if what == "approved" else _text(entry, "agent_name")
    return Entry(
        file=clean(verified.path.name, _MOST_SENTENCE),
        number=number,
        at=at if isinstance(at, (int, float)) and not isinstance(at, bool) else None,
        run=clean(_text(entry, "run_id"), _MOST_WORD),
        tool=clean(_text(entry, "tool"), _MOST_WORD),
        what=clean(word, _MOST_WORD),
        tone=_VERDICTS.get(word, "run"),
        says=clean(" ".join(verified.problems) if bad else says, _MOST_SENTENCE),
        who=clean(person or others or agent, _MOST_WORD),
        person=bool(person),
        hash=clean(_text(entry, "hash"), 64),
        fits=True if verified.bad_line is None or number < verified.bad_line else False if bad else None,
        fields=tuple((clean(name, _MOST_WORD), clean(_written(value), _MOST_FIELD)) for name, value in entry.items() if value is not None),
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


def _says(entry: Mapping[str, Any], what: str, *, passed: bool) -> str:
    """Write what an entry says besides who, when and which tool: why, and with which arguments, where those were kept."""
    why = ", which was approved" if passed else ", a person is asked" if entry.get("decision") == "escalate" else ""
    parts = [f"{_text(entry, 'reason')}{why}"] if _text(entry, "reason") else []
    parts += [_text(entry, "stop_reason")]
    if what == "approved":
        parts += _answered(entry)
    elif what != "reviewed":
        parts += [_arguments(entry)]
    kept = ((name, value) for name, value in entry.items() if name not in _SHOWN_APART and value is not None)
    parts += [f"{name}={_written(value)}" for name, value in kept]
    return "; ".join(filter(None, parts))


def _answered(entry: Mapping[str, Any]) -> list[str]:
    """Write what a person said: to what was shown, or to what they put in its place, and whether it counts."""
    parts = [] if _word(entry, "approved") == "rejected" else [_edit(entry)]
    if entry.get("permitted", True) is False:
        parts += ["who said it may not decide about it"]
    if entry.get("fits", True) is False:
        parts += ["the edit does not fit its tool"]
    comment = _text(entry, "comment")
    return [*parts, f"“{comment}”" if comment else ""]


def _edit(entry: Mapping[str, Any]) -> str:
    """Write which arguments were edited to what: by their hashes where they were not kept."""
    asked, arguments = entry.get("asked"), entry.get("arguments")
    if isinstance(asked, Mapping) and isinstance(arguments, Mapping):
        before, after = cast("Mapping[str, Any]", asked), cast("Mapping[str, Any]", arguments)
        names = [name for name in dict.fromkeys([*before, *after]) if before.get(name) != after.get(name)]
        edits = [f"{name} {_side(before, name)} → {_side(after, name)}" for name in names]
        return f"edited: {', '.join(edits)}" if edits else f"as shown: {_listed(after)}"
    if entry.get("asked_sha256") in (None, entry.get("args_sha256")):
        return "as shown"
    return f"edited: from {_short(entry, 'asked_sha256')} to {_short(entry, 'args_sha256')}, by the hashes of the arguments"


def _side(arguments: Mapping[str, Any], name: str) -> str:
    """Write one argument beside another: a number with its thousands, and "left out" where there is none."""
    value = arguments.get(name)
    if name not in arguments:
        return "left out"
    return f"{value:,}" if isinstance(value, (int, float)) and not isinstance(value, bool) else json.dumps(value)


def _arguments(entry: Mapping[str, Any]) -> str:
    arguments = entry.get("arguments")
    if isinstance(arguments, Mapping):
        return _listed(cast("Mapping[str, Any]", arguments))
    if isinstance(arguments, str):
        return arguments
    return f"its arguments were not kept, only their hash {_short(entry, 'args_sha256')}" if _text(entry, "args_sha256") else ""


def _listed(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in arguments.items())


def _short(entry: Mapping[str, Any], name: str) -> str:
    return _text(entry, name)[:_HASH_SHOWN]


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
