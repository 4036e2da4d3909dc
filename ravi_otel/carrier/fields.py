"""Read headers as they come from anywhere: a mapping or pairs, text or bytes, each as often as it came."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, cast

MOST: Final = 10_000
"""How many headers are looked at."""


def pairs_of(headers: object) -> Iterator[tuple[str, str]]:
    """Yield each name, in lower case, with each of its values; whatever is neither text nor bytes is empty.

    What has `items` is asked for them: also the messages of `http.server`, which are no mappings.

    Raises ValueError for more headers than anybody sends, and whatever a mapping or an iterable of a stranger's making raises.
    """
    given: Any = headers
    pairs: Iterable[Any] = given.items() if callable(getattr(given, "items", None)) else given
    for count, pair in enumerate(pairs):
        if count >= MOST:
            raise ValueError("headers")
        name = _text(pair[0]).lower()
        value: Any = pair[1]
        for each in cast("Iterable[Any]", value if isinstance(value, (list, tuple)) else (value,)):
            yield name, _text(each)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str) else ""
