"""Take secrets out of texts before they leave: the hook that does it, what happens when it fails, and a ready one.

What is found is replaced by `[redacted:KIND]`, whose brackets and colon belong to no shape looked for here: so nothing is
found in it again, and redacting twice is redacting once. Every pattern either takes what it has read or gives up within a
bounded number of characters, which keeps the time linear in the text.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from itertools import accumulate
from typing import Final

_log = logging.getLogger("ravi_otel")

Redact = Callable[[str], str]
"""Take a text and give it without its secrets.

It is called for every text that is told, keys and names that are the program's own among them, in whatever thread or task makes
the call. Of a long text it is given the beginning: twice the bytes that are told of it, and 1 KiB; the last 1 KiB of what it
gives back is left out then, lest half a secret show.
"""

FAILED: Final = "[redaction failed]"
"""What stands for a text whose hook raised, or gave no text."""

_TAIL: Final = r"[A-Za-z0-9_\-]"
_KEYS: Final = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:[\s\S]*?-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|[\s\S]*)"  # one that is cut off has no end
    rf"|[Bb]earer[ \t]{{1,8}}[A-Za-z0-9._~+/\-]{{8,}}=*{_TAIL}*"
    rf"|eyJ{_TAIL}{{8,}}(?:\.{_TAIL}+){{0,4}}"
    rf"|(?<![A-Za-z])(?:sk|pk|rk)[\-_](?={_TAIL}{{0,100}}[0-9]){_TAIL}{{12,}}"
    rf"|(?<![A-Za-z])(?:gsk_|xai-|hf_|r8_|npm_|pypi-|glpat-|github_pat_|gh[opsur]_|xox[abeoprs]-){_TAIL}{{12,}}"
    rf"|(?<![A-Za-z])(?:AKIA|ASIA)[0-9A-Z]{{16}}{_TAIL}*"
    rf"|(?<![A-Za-z])AIza{_TAIL}{{30,}}"
)
_MAIL_HOST: Final = re.compile(r"@[\w\-]+(?:\.[\w\-]+)+")
_MAIL_NAME: Final = re.compile(r"[\w.%+\-]{1,64}")
_MOST_NAME: Final = 64
_RUN: Final = re.compile(r"[0-9+(][0-9+(). \-]{6,}")
_GROUP: Final = re.compile(r"[0-9]+")
_SEPARATORS: Final = frozenset({" ", "-", ".", ") ", ")", ")-", " (", "-(", ". ", " - "})
_CARD_SEPARATORS: Final = frozenset({" ", "-"})

_FEWEST_CARD: Final = 13
_MOST_CARD: Final = 19
_MOST_GROUPS: Final = 8
_FEWEST_ABROAD: Final = 7
_MOST_PHONE: Final = 15
_FEWEST_NATIONAL: Final = 9
_MOST_NATIONAL: Final = 12
_AMERICAN: Final = ((3, 3, 4), (1, 3, 3, 4))
_MOST_AMERICAN: Final = 4
_VALUES: Final = str.maketrans({str(digit): digit for digit in range(10)})
_DOUBLED: Final = bytes(sum(divmod(2 * value, 10)) if value < 10 else value for value in range(256))  # noqa: PLR2004 - digits


_redacting: ContextVar[bool] = ContextVar("ravi-otel-redacting", default=False)


def is_redacting() -> bool:
    """Whether the hook is running: of the calls and tools it begins itself, nothing that is said is captured."""
    return _redacting.get()


def guarded(redact: Redact) -> Redact:
    """Return a hook that never raises, and is never run inside itself: `[redaction failed]` stands for what it could not do."""
    told: list[str] = []

    def run(text: str) -> str:
        if _redacting.get():
            return FAILED  # a hook that caused what it should redact would never end
        inside = _redacting.set(True)
        try:
            found = redact(text)
        except Exception as error:  # noqa: BLE001 - the program's own hook may raise anything
            if not told:
                told.append(type(error).__name__)  # not the error itself, whose sentence may quote the text
                _log.warning("ravi-otel: the redaction hook raised %s; such texts are told as %s.", told[0], FAILED)
            return FAILED
        finally:
            _redacting.reset(inside)
        return found if isinstance(found, str) else FAILED  # pyright: ignore[reportUnnecessaryIsInstance]  # a hook without types may give anything

    return run


def redact_secrets(text: str) -> str:
    """Replace e-mail addresses, telephone and card numbers, and keys of known shapes.

    Cards are told by their length and check digit; telephone numbers by a plus sign, American grouping, or a leading zero
    with separators. Keys are private-key blocks, bearer tokens, signed web tokens, and those with a known beginning
    (`sk-`, `gsk_`, `AKIA`, `ghp_` and their kind).
    """
    text = _KEYS.sub("[redacted:key]", text)
    if "@" in text:
        text = _without_addresses(text)
    return _RUN.sub(_without_numbers, text)


def _without_addresses(text: str) -> str:
    """Look at what stands before each host: looking for names first would read every word 64 times."""
    kept: list[str] = []
    done = 0
    for host in _MAIL_HOST.finditer(text):
        at = host.start()
        name = _MAIL_NAME.match(text[max(done, at - _MOST_NAME) : at][::-1])
        if name is not None:
            kept.append(text[done : at - name.end()])
            kept.append("[redacted:email]")
            done = host.end()
    return "".join((*kept, text[done:])) if kept else text


def _without_numbers(match: re.Match[str]) -> str:
    run, whole, at = match.group(), match.string, match.start()
    groups = [found.span() for found in _GROUP.finditer(run)]
    sums = list(accumulate((end - begin for begin, end in groups), initial=0))
    kept: list[str] = []
    done = first = 0
    while first < len(groups):
        most = sums[min(first + _MOST_GROUPS, len(groups))] - sums[first]  # digits of the widest window from here
        window = _card(run, groups, first) if most >= _FEWEST_CARD else None
        if window is None and most >= _FEWEST_ABROAD and _may_be_phone(run, groups, first):
            window = _phone(run, groups, first, whole, at)
        if window is None:
            first += 1
            continue
        kind, last, begin = window
        kept.append(run[done:begin])
        kept.append(f"[redacted:{kind}]")
        done, first = groups[last][1], last + 1
    return "".join((*kept, run[done:])) if kept else run


def _may_be_phone(run: str, groups: list[tuple[int, int]], first: int) -> bool:
    """Tell groups that can begin no telephone number, in a glance."""
    begin = groups[first][0]
    if run[begin] == "0" or begin == 0 or "+" in run[max(0, begin - 2) : begin]:
        return True
    sizes = tuple([end - start for start, end in groups[first : first + _MOST_AMERICAN]])
    return sizes in _AMERICAN or sizes[:-1] in _AMERICAN


def _windows(run: str, groups: list[tuple[int, int]], first: int, most: int, between: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield the digits of each window of groups that begins at `first`, with its last group, while separators allow."""
    digits = ""
    for last in range(first, min(first + _MOST_GROUPS, len(groups))):
        begin, end = groups[last]
        if last > first and run[groups[last - 1][1] : begin] not in between:
            return
        if len(digits) + end - begin > most:
            return
        digits += run[begin:end]
        yield last, digits


def _card(run: str, groups: list[tuple[int, int]], first: int) -> tuple[str, int, int] | None:
    found: int | None = None
    for last, digits in _windows(run, groups, first, _MOST_CARD, _CARD_SEPARATORS):
        if len(digits) >= _FEWEST_CARD and _checks(digits):
            found = last
    return None if found is None else ("card", found, groups[first][0])


def _checks(digits: str) -> bool:
    """Whether the last digit is the check digit of the others (Luhn)."""
    values = digits.translate(_VALUES).encode("latin-1")
    return (sum(values[-1::-2]) + sum(values[-2::-2].translate(_DOUBLED))) % 10 == 0


def _phone(run: str, groups: list[tuple[int, int]], first: int, whole: str, at: int) -> tuple[str, int, int] | None:
    start = groups[first][0]
    before = run[start - 1] if start else whole[at - 1 : at]
    plus = before == "+" or run[max(0, start - 2) : start] == "+("
    if not plus and (before.isalpha() or before == "_"):
        return None
    found: int | None = None
    for last, digits in _windows(run, groups, first, _MOST_PHONE, _SEPARATORS):
        sizes = tuple(end - begin for begin, end in groups[first : last + 1])
        if (plus and len(digits) >= _FEWEST_ABROAD) or (not _runs_on(whole, at + groups[last][1]) and _is_national(digits, sizes)):
            found = last
    if found is None:
        return None
    while start and run[start - 1] in "+(":
        start -= 1
    return "phone", found, start


def _runs_on(whole: str, end: int) -> bool:
    after = whole[end : end + 1]
    return after.isalpha() or after == "_"


def _is_national(digits: str, sizes: tuple[int, ...]) -> bool:
    if sizes in _AMERICAN:
        return True
    return digits[0] == "0" and len(sizes) > 1 and _FEWEST_NATIONAL <= len(digits) <= _MOST_NATIONAL
