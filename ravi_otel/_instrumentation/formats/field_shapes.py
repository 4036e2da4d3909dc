"""Let pass of what names an answer only what is shaped like such a name: whoever answers may write a key into any field."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from ravi_otel.policy.usage import Reply

OTHER: Final = "_OTHER"
"""What stands for a code that is none."""

_USUAL: Final = frozenset({"stop", "length", "tool_calls", "content_filter", "error", "default", "standard", "priority", "flex"})
"""Codes that come with nearly every answer, and are known to be some."""

_MOST_KEPT: Final = 512
_TOO_LONG: Final = 257
"""Characters of a value that are looked at, and kept: no name or code has so many."""

_NAME: Final = re.compile(r"[A-Za-z0-9._:/@+=~-]{1,256}")
_CODE: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_OPAQUE: Final = re.compile(r"(?=[A-Za-z]*[0-9])[A-Za-z0-9]{12}|[0-9A-Fa-f]{8}[-_][0-9A-Fa-f]{4}[-_]")
"""What no code has: a long run with digits in it, or the beginning of a UUID."""

_KEY: Final = re.compile(
    r"eyJ[\w-]{8}|(?<![A-Za-z])(?:AKIA|ASIA)[0-9A-Z]{12}|(?<![A-Za-z])AIza[\w-]{12}"
    r"|(?<![A-Za-z])(?:sk|pk|rk)[-_](?=[\w-]{0,100}\d)[\w-]{8}"
    r"|(?<![A-Za-z])(?:gsk_|xai-|hf_|r8_|npm_|pypi-|glpat-|github_pat_|gh[opsur]_|xox[abeoprs]-|pplx-|nvapi-|ya29\.)[\w-]{12}"
    r"|(?<![A-Za-z0-9])c2st[A-Za-z0-9+/]{12}"  # `sk-`, in base 64
)


def shaped(reply: Reply, asked: str | None = None) -> Reply:
    """Return the reply without ids and names of another shape, or that look like a key, and with `_OTHER` for such codes.

    `asked` is the model that the program named, which is told as it is.
    """
    if reply.id is not None and not _is_name(reply.id):
        reply.id = None
    if reply.model is not None and reply.model != asked and not _is_known_name(reply.model[:_TOO_LONG]):
        reply.model = None
    if not _USUAL.issuperset(reply.finish_reasons):
        reply.finish_reasons = tuple([code(one) for one in reply.finish_reasons])
    if reply.error_type is not None:
        reply.error_type = code(reply.error_type)
    if reply.service_tier is not None and reply.service_tier not in _USUAL and not _is_word(reply.service_tier[:_TOO_LONG]):
        reply.service_tier = None
    if reply.system_fingerprint is not None and not _is_known_name(reply.system_fingerprint[:_TOO_LONG]):
        reply.system_fingerprint = None
    if reply.conversation_id is not None and not _is_name(reply.conversation_id):
        reply.conversation_id = None
    return reply


def code(value: str) -> str:
    """Return a code or a reason, `_OTHER` for what is none: it is words of an API, and no long run of letters and digits."""
    return value if _is_word(value[:_TOO_LONG]) else OTHER


def _is_name(value: str) -> bool:
    return _NAME.fullmatch(value) is not None and _KEY.search(value) is None


_is_known_name: Final = lru_cache(maxsize=_MOST_KEPT)(_is_name)
"""The same, for names that come with every answer."""


@lru_cache(maxsize=_MOST_KEPT)
def _is_word(value: str) -> bool:
    return _CODE.fullmatch(value) is not None and _OPAQUE.search(value) is None and _KEY.search(value) is None
