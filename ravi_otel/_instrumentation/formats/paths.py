"""Take apart the path a client will really send, however it was spelled, and compare it with those an API is known to have."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import product
from typing import Final
from urllib.parse import unquote, urlsplit

READS: Final = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})
"""Methods that begin nothing."""

_MOST_KEPT: Final = 512
_MOST_NAMED: Final = 4
_VERSION: Final = re.compile(r"v\d{1,3}")
_ID: Final = re.compile(r"(?=.*\d|.{20})[a-z0-9._~-]{1,128}")
"""What ids end a path with. A plain word there may as well be the name of something to do."""


@lru_cache(maxsize=_MOST_KEPT)
def segments(path: str, base: str = "") -> tuple[str, ...]:
    """Return the segments below `base`, plain: no host, query, fragment or parameters, `.` and `..` resolved, lower case.

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


def below_version(parts: tuple[str, ...], root: str = "") -> tuple[str, ...]:
    """Return the segments below an API's version, where there is one, and below `root`."""
    at = next((at for at, part in enumerate(parts) if _VERSION.fullmatch(part)), -1)
    parts = parts[at + 1 :]
    while parts and (parts[0] == root or _VERSION.fullmatch(parts[0])):
        parts = parts[1:]
    return parts


def named(path: str, words: frozenset[str]) -> str:
    """Return a path without its ids, so that few distinct ones exist: `/files/file-9x1/content` is `files.content`.

    `words` are those of an API's paths. Any other segment may be an id, a name or a key, and is nobody's business.
    """
    found = [part for part in path.partition("?")[0].split("/") if part in words]
    return ".".join(found[:_MOST_NAMED]) or "request"


class Shapes:
    """Hold the paths of an API that are alike in what they ask for.

    They are written `files files/*/content`, where `*` stands for an id, `x*` for one that begins so, and `a|b` for either of
    two words.
    """

    __slots__ = ("_shapes",)

    def __init__(self, *written: str) -> None:
        self._shapes = frozenset(_spelled(" ".join(written).split()))

    def has(self, parts: tuple[str, ...]) -> bool:
        """Whether a path is one of these; what stands for an id at its end must look like one."""
        return any(len(shape) == len(parts) and _fits(parts, shape) for shape in self._shapes)


def _spelled(written: Iterable[str]) -> Iterable[tuple[str, ...]]:
    for one in written:
        yield from product(*(part.split("|") for part in one.split("/")))


def _fits(parts: tuple[str, ...], shape: tuple[str, ...]) -> bool:
    if shape[-1].endswith("*") and _ID.fullmatch(parts[-1]) is None:
        return False
    return all(part.startswith(wanted[:-1]) if wanted.endswith("*") else part == wanted for part, wanted in zip(parts, shape, strict=True))
