"""Tell pictures, sounds and files by their hash and size; their bytes are never told."""

from __future__ import annotations

import binascii
import re
from hashlib import sha256
from typing import Any, Final
from urllib.parse import unquote_to_bytes

_MOST_HASHED: Final = 64 * 1024 * 1024
_MOST_MIME: Final = 100
_FEWEST_ENCODED: Final = 512
_ENCODED: Final = re.compile(r"[A-Za-z0-9+/_\-\r\n]{512,}={0,2}\s{0,2}")
_INLINE: Final = re.compile(
    r"data:[A-Za-z0-9.+\-]{0,64}/?[A-Za-z0-9.+\-]{0,128}(?:;[A-Za-z0-9=.+\-]{1,64}){0,4};base64,[A-Za-z0-9+/=_\-%]{16,}"
)
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]{1,30}://\S+")
_URL_SAFE: Final = str.maketrans("-_", "+/")

Digest = dict[str, Any]


def digest(content: str | bytes | bytearray | memoryview) -> Digest:
    """Give `sha256` and `size` of bytes, or of what a base64 text stands for; beyond 64 MiB the size alone."""
    if isinstance(content, str):
        if len(content) > _MOST_HASHED:
            return {"size": len(content) * 3 // 4}
        content = _decoded(content)
    size = len(content) if not isinstance(content, memoryview) else content.nbytes
    return {"size": size} if size > _MOST_HASHED else {"sha256": sha256(content).hexdigest(), "size": size}


def _decoded(content: str) -> bytes:
    if "-" in content or "_" in content:
        content = content.translate(_URL_SAFE)
    try:
        return binascii.a2b_base64(content + "=" * (-len(content) % 4))
    except ValueError:  # no base64: the text itself is all there is
        return content.encode("utf-8", "replace")


def is_data_url(text: str) -> bool:
    """Tell a URL that holds what it names."""
    return text[:5].lower() == "data:" and "," in text


def data_url(url: str) -> Digest:
    """Give the media type, hash and size of what a `data:` URL holds."""
    head, _, body = url.partition(",")
    kind, *options = head[5:].split(";")
    encoded = any(option.strip().lower() == "base64" for option in options)
    if "%" in body and len(body) <= _MOST_HASHED:
        plain = unquote_to_bytes(body)
        held: str | bytes = plain.decode("ascii", "replace") if encoded else plain
    else:
        held = body if encoded else body.encode("utf-8", "replace")
    told = digest(held)
    return {"mime_type": kind[:_MOST_MIME], **told} if kind else told


def is_encoded(text: str) -> bool:
    """Tell a text that can only be bytes in base64: long, in no other characters, and of all their kinds."""
    if len(text) < _FEWEST_ENCODED or " " in text[:_FEWEST_ENCODED] or _ENCODED.fullmatch(text) is None:
        return False
    begins = text[:_FEWEST_ENCODED]
    return (
        any("A" <= char <= "Z" for char in begins)
        and any("a" <= char <= "z" for char in begins)
        and any("0" <= char <= "9" for char in begins)
    )


def written(told: Digest) -> str:
    """Write a digest where only a text can stand."""
    kind, found = told.get("mime_type", "media"), told.get("sha256")
    return f"[{kind}, {told['size']} bytes{'' if found is None else f', sha256 {found}'}]"


def without_media(text: str) -> str:
    """Write each `data:` URL inside a text as its digest."""
    if ";base64," not in text:
        return text
    return _INLINE.sub(lambda found: written(data_url(found.group())), text)


def is_address(text: str) -> bool:
    """Tell a text that is one URL and nothing else."""
    return "://" in text[:40] and _ADDRESS.fullmatch(text) is not None


def plain_address(url: str) -> str:
    """Give a URL without what may hold a key: its query, its fragment, and the user before its host."""
    bare = url.partition("#")[0].partition("?")[0]
    scheme, separator, rest = bare.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"
