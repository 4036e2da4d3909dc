"""Take apart the path a client will really send, however it was spelled."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import unquote, urlsplit

_MOST_KEPT = 512


@lru_cache(maxsize=_MOST_KEPT)
def segments(path: str, base: str = "") -> tuple[str, ...]:
    """Give the segments below `base`, plain: no host, query, fragment or parameters, `.` and `..` resolved, lower case.

    An absolute URL stands for itself, whatever the base is. Two spellings a server may take for one are one here.
    """
    try:
        split = urlsplit(path)
    except ValueError:  # the client will refuse it, too
        whole = path
    else:
        whole = split.path if split.scheme and split.netloc else f"{base}/{split.path}"
    found: list[str] = []
    for raw in unquote(whole).replace("\\", "/").lower().split("/"):
        part = raw.partition(";")[0].partition("?")[0].partition("#")[0].strip()
        if part == "..":
            del found[-1:]
        elif part not in ("", "."):
            found.append(part)
    return tuple(found)
