"""Read the few headers of an answer that say which request it was and how much is left; of a request's, none.

Whoever answers may send anything, a key it was sent among it: a value passes by its shape alone.
"""

from __future__ import annotations

import re
from typing import Any, Final

from ravi_otel._instrumentation.formats.fields import get

_MOST_BYTES: Final = 80
_MOST_DIGITS: Final = 15
_ID: Final = re.compile(
    rb"req_[0-9A-Za-z_]{1,64}"
    rb"|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"  # a UUID
    rb"|[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}"  # a random one without dashes; other 32 digits are some hosts' keys
    rb"|[0-7][0-9A-HJKMNP-TV-Z]{25}"  # a ULID
)
_AMOUNT: Final = re.compile(
    rb"\d{1,15}(?:\.\d{1,9})?"
    rb"|(?:\d{1,9}(?:\.\d{1,9})?(?:ms|us|ns|d|h|m|s)){1,5}"
    rb"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)"
    rb"|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) \d{4} \d\d:\d\d:\d\d GMT"
)
_REQUEST_ID: Final = ""
_TOLD: Final = dict.fromkeys((b"x-request-id", b"request-id", b"apim-request-id", b"x-amzn-requestid"), _REQUEST_ID) | {
    name.encode(): name
    for name in (
        *(f"x-ratelimit-{what}-{of}" for what in ("limit", "remaining", "reset") for of in ("requests", "tokens")),
        *(
            f"anthropic-ratelimit-{of}-{what}"
            for what in ("limit", "remaining", "reset")
            for of in ("requests", "tokens", "input-tokens", "output-tokens")
        ),
        "retry-after",
        "retry-after-ms",
    )
}
"""The headers that are told, and the names of the amounts among them."""


def headers_of(error: BaseException | None) -> tuple[str | None, dict[str, str]]:
    """Give what the answer behind a client's error tells, if there was one."""
    response = get(error, "response")
    headers = get(response, "headers")
    return (None, {}) if getattr(headers, "raw", None) is None else told_headers(headers)


def told_headers(headers: Any) -> tuple[str | None, dict[str, str]]:
    """Give the provider's id of a request, and what it says of rate limits by header name; a value of another shape is left out."""
    found: bytes | None = None
    limits: dict[str, str] = {}
    for raw_name, raw_value in headers.raw:
        limit = _TOLD.get(raw_name.lower())
        if limit is None:
            continue
        value = raw_value.strip()
        if len(value) > _MOST_BYTES:
            continue
        if limit:
            if (value.isdigit() and len(value) <= _MOST_DIGITS) or _AMOUNT.fullmatch(value):
                limits[limit] = value.decode("ascii")
        elif found is None and _ID.fullmatch(value):
            found = value
    return None if found is None else found.decode("ascii"), limits
