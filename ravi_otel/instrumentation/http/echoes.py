"""Keep out of what is told of an answer the keys a server may have put in it: any that looks like one, and the program's own.

Whoever answers may write what it was sent into any field. What names an answer is told as it is, or not at all.
"""

from __future__ import annotations

import re
from base64 import b64encode
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

from ravi_otel.instrumentation.http.fields import get
from ravi_otel.policy.usage import Reply

OTHER: Final = "_OTHER"
"""What stands for a code that is none."""

REQUEST_IDS: Final = (b"x-request-id", b"request-id", b"apim-request-id", b"x-amzn-requestid", b"x-client-request-id")
"""Headers whose value a program chooses to be told again."""

_MOST_NAME: Final = 256
_MOST_KEPT: Final = 512
_FEWEST: Final = 8
"""A shorter secret is found in too much. As many letters of an id are looked for at a time, so a part of a key is found, too."""

_CREDENTIALS: Final = (b"authorization", b"api-key", b"x-api-key")
_KEY: Final = re.compile(
    r"[Bb]earer\s|-----BEGIN|eyJ[\w-]{8}|(?<![A-Za-z])(?:AKIA|ASIA)[0-9A-Z]{12}|(?<![A-Za-z])AIza[\w-]{12}"
    r"|(?<![A-Za-z])(?:sk|pk|rk)[-_](?=[\w-]{0,100}\d)[\w-]{8}"
    r"|(?<![A-Za-z])(?:gsk_|xai-|hf_|r8_|npm_|pypi-|glpat-|github_pat_|gh[opsur]_|xox[abeoprs]-|pplx-|nvapi-|ya29\.)[\w-]{12}"
    r"|(?<![A-Za-z0-9])c2st[A-Za-z0-9+/]{12}"  # `sk-`, in base 64
)
_PLAIN_ID: Final = re.compile(r"(?:chatcmpl-|cmpl-|resp_|msg_|run_|modr-|video_|conv_)[0-9A-Za-z]{1,64}")
"""What ids of answers nearly always are: letters and digits of the provider's choosing."""

_CODE: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_OPAQUE: Final = re.compile(r"(?=[A-Za-z]*[0-9])[A-Za-z0-9]{12}|[0-9A-Fa-f]{8}[-_][0-9A-Fa-f]{4}[-_]")
"""What no word has: a long run with digits in it, or the beginning of a UUID."""

_KEPT: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"
_BETWEEN: Final = b" =;,\n"
_PLAIN: Final = bytes(10 if one in _BETWEEN else one for one in bytes(range(256)).lower())
_DROPPED: Final = bytes(one for one in range(256) if one not in _BETWEEN and bytes((one,)).lower() not in _KEPT)


def shaped(reply: Reply, request: Any = None, asked: str | None = None) -> Reply:
    """Take from what an answer says of itself what may be a key, and give it back.

    `request` is what was answered; `asked` the model the program named itself. Ids and names that may be keys are unknown
    then, and codes `_OTHER`.
    """
    if reply.id is not None:
        reply.id = _id(reply.id, request)
    if reply.model is not None and reply.model != asked:
        reply.model = _name(reply.model, request)
    if reply.finish_reasons:
        reply.finish_reasons = tuple([code(one) for one in reply.finish_reasons])
    if reply.error_type is not None:
        reply.error_type = code(reply.error_type)
    if reply.service_tier is not None:
        reply.service_tier = _word(reply.service_tier)
    if reply.system_fingerprint is not None:
        reply.system_fingerprint = _name(reply.system_fingerprint, request)
    if reply.conversation_id is not None:
        reply.conversation_id = _id(reply.conversation_id, request)
    return reply


def code(value: str) -> str:
    """Give a code or a reason, `_OTHER` for what is none: it is words of an API, and no long run of letters and digits."""
    return _word(value) or OTHER


def _word(value: str) -> str | None:
    return value if len(value) <= _MOST_NAME and _is_word(value) else None


@lru_cache(maxsize=_MOST_KEPT)
def _is_word(value: str) -> bool:
    return _CODE.fullmatch(value) is not None and _OPAQUE.search(value) is None and _KEY.search(value) is None


def _id(value: str, request: Any) -> str | None:
    if _PLAIN_ID.fullmatch(value) is not None:
        return value
    if len(value) > _MOST_NAME or _is_key(value):
        return None
    return None if was_sent(value.encode("utf-8", "replace"), request) else value


def _name(value: str, request: Any) -> str | None:
    if len(value) > _MOST_NAME:
        return None
    kind = _kind(value)
    return None if kind is None or (kind and was_sent(value.encode("utf-8", "replace"), request)) else value


@lru_cache(maxsize=_MOST_KEPT)
def _kind(value: str) -> bool | None:
    """Tell a name that may hold a key of no known shape; None for one that holds a known one."""
    return None if _is_key(value) else _OPAQUE.search(value) is not None


def _is_key(value: str) -> bool:
    return _KEY.search(unquote(value) if "%" in value else value) is not None


def was_sent(value: bytes, request: Any, *, path: bool = False) -> bool:
    """Tell that an id is made of what a request's headers or its address say, other than an id the program chose itself.

    Letters and digits are compared, whatever is between them and however they are written. A long part of a secret is enough,
    and so is one in base 64. Of the address it is the query, and the path where `path` says so: a path may hold an id that the
    program asked for.
    """
    if request is None:
        return False
    sent = getattr(get(request, "headers"), "raw", ())
    told = value.translate(_PLAIN, _DROPPED)
    if len(told) < _FEWEST:
        return False
    said = [given for _, given in sent if len(given) >= _FEWEST]
    address = get(get(request, "url"), "raw_path")
    if isinstance(address, bytes):
        said.append(address if path else address.partition(b"?")[2])
    if value != value.lower():
        said += [b64encode(given.rpartition(b" ")[2]) for name, given in sent if name.lower() in _CREDENTIALS]
    if not _overlaps(told, said):
        return False
    chosen = {given for name, given in sent if name.lower() in REQUEST_IDS}
    return not chosen or _overlaps(told, [given for given in said if given not in chosen])


def _overlaps(told: bytes, said: list[bytes]) -> bool:
    letters = b"\n".join(said).translate(_PLAIN, _DROPPED)
    for at in range(0, len(told) - _FEWEST + 1, _FEWEST):
        if told[at : at + _FEWEST] in letters:
            return True
    return any(len(one) >= _FEWEST for one in letters.split() if one in told)
