"""Read the JSON text of a model: bounded, each key once, and with what Python's reader lets pass kept so that it can be refused by name."""

from __future__ import annotations

from json import JSONDecodeError, loads  # as it is now: the program may make tools of that module's functions
from typing import Any, Final

from ravi_otel.errors import RaviError
from ravi_otel.policy import checks
from ravi_otel.supervisor.hashing import MOST_CHARS

_TOO_LARGE: Final = 10**40
_MOST_DIGITS: Final = 40


class NotJsonError(RaviError, ValueError):
    """Report text that is no JSON to rely on: `code` is non_json, duplicate_key, too_deep or too_large."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the code when the error crosses a process."""
        return (type(self), (self.code, str(self)))


def read_json(text: str) -> Any:
    """Read JSON text; raises NotJsonError, whose message goes behind "The arguments of T".

    NaN, Infinity and 1e400 are read as what they are, and a number of too many digits as one beyond every bound, so that whoever looks at
    the values can say which of them it was.
    """
    if len(text) > MOST_CHARS:
        raise NotJsonError("too_large", f"are JSON text of more than {MOST_CHARS} characters; send less.")
    try:
        return loads(text, object_pairs_hook=_object, parse_int=_whole)
    except NotJsonError:
        raise
    except RecursionError:
        raise NotJsonError("too_deep", "are nested too deep; send them flat.") from None
    except ValueError as error:
        said = error.msg if isinstance(error, JSONDecodeError) else "it cannot be read"
        at = f" at character {error.pos}" if isinstance(error, JSONDecodeError) else ""
        raise NotJsonError("non_json", f"are no JSON text: {said}{at}.") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]  # it remembers
        raise NotJsonError("duplicate_key", f"have the key {checks.show(twice)} twice; which one counts is not to be guessed.")
    return made


def _whole(digits: str) -> int:
    return int(digits) if len(digits) <= _MOST_DIGITS else _TOO_LARGE
