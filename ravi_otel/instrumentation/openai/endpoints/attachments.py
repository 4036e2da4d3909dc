"""Look at the files of a multipart request from outside: what is sent is never read, moved or consumed."""

from __future__ import annotations

import io
import mimetypes
import os
import stat
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeGuard, cast

from ravi_otel.policy.content import Part

_MOST_FILES: Final = 64
_CONTENT: Final = 1
_MIME: Final = 2


def attached(files: Any) -> Iterator[tuple[str, Any]]:
    """List the form's files, (field, file), where they stand in a list or a mapping; anything else is the caller's to read."""
    if _is_form(files):
        entries: Any = files.items()
    elif _is_list(files):
        entries = files
    else:
        return
    for entry in list[Any](entries)[:_MOST_FILES]:
        if _is_named(entry) and isinstance(entry[0], str):
            yield entry[0], entry[1]


def size_of(file: Any) -> int | None:
    """Give a file's size in bytes where it is known without reading it, else None."""
    content = _content(file)
    if isinstance(content, (bytes, bytearray)):
        return len(content)
    try:
        # These exact classes alone: what somebody else's object does when it is asked, nobody knows.
        if type(content) is io.BytesIO:
            return content.getbuffer().nbytes
        if type(content) in (io.BufferedReader, io.FileIO):
            found = os.fstat(content.fileno())
            return found.st_size if stat.S_ISREG(found.st_mode) else None
    except (OSError, ValueError):  # closed, or no real file
        pass
    return None


def part_of(file: Any, modality: str) -> Part:
    """Write a file down: its bytes where the request holds them, else that there was one, and its size where known."""
    content = _content(file)
    if isinstance(content, (bytes, bytearray)):
        return {"type": "blob", "modality": modality, "mime_type": _mime(file), "content": bytes(content)}
    part: Part = {"type": "upload", "modality": modality, "mime_type": _mime(file)}
    size = size_of(file)
    if size is not None:
        part["size"] = size
    return part


def _content(file: Any) -> Any:
    return file[_CONTENT] if _is_named(file) else file


def _mime(file: Any) -> str | None:
    if not _is_named(file):
        return None
    if len(file) > _MIME and isinstance(file[_MIME], str):
        return file[_MIME]
    return mimetypes.guess_type(file[0])[0] if isinstance(file[0], str) else None


def _is_form(files: object) -> TypeGuard[dict[Any, Any]]:
    return isinstance(files, dict)


def _is_list(files: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(files, (list, tuple))


def _is_named(file: object) -> TypeGuard[tuple[Any, ...]]:
    """Tell a tuple whose first two places are a name and what it stands for."""
    return isinstance(file, tuple) and len(cast("Sequence[Any]", file)) > _CONTENT
