"""Size a request for a strict limit, and read the words of an answer that was cut."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

from ravi_otel._enforcement import errors_text
from ravi_otel._enforcement.errors_text import owned
from ravi_otel._instrumentation.formats.format import Request, WireFormat
from ravi_otel._instrumentation.http.changes import can_cap
from ravi_otel._runtime.model_call import ModelCall
from ravi_otel.hooks.guard import swallow
from ravi_otel.policy.usage import Call

_VENDORS: Final = frozenset({"openai", "anthropic", "groq"})
_SLACK: Final = 256
"""Bytes by which the client's own additions make a body longer."""


class Sized:
    """Know the request of a call that came around our wrapper (`runtime.capping.Sizing`)."""

    __slots__ = ("_call", "_endpoint", "_options", "_request")

    def __init__(self, endpoint: WireFormat, request: Request, call: Call, options: Any) -> None:
        self._endpoint = endpoint
        self._request = request
        self._call = call
        self._options = options

    def bound(self) -> None:
        """See `Sizing.bound`."""
        sized(self._endpoint, self._request, self._call, self._options)


def sized(endpoint: WireFormat, request: Request, call: Call, options: Any) -> None:
    """Write on a call how large its input can be, or what hides that; what we fail to read has no bound either."""
    try:
        endpoint.bound(request, call)
        if call.least_cap and call.output_cap != 0 and not can_cap(options):
            call.unbounded, call.least_cap = "a body of the program's own bytes", 0
    except Exception as error:  # noqa: BLE001 - our own bug loosens no strict limit
        swallow("bound", error)
        call.unbounded = call.unbounded or "what could not be read"


def refuse_grown(live: ModelCall, client: Any, built: Any, endpoint: WireFormat, asked: Request) -> None:
    """Raise BudgetExhaustedError where a class derived from the client made the request more than what strict limits hold.

    What the client's own classes send is what we read; it is not looked at again.
    """
    package = str(getattr(getattr(client, "_prepare_options", None), "__module__", "")).partition(".")[0]
    plan = live.scope.plan
    strict = (account for account in plan.accounts() if account.strict and not account.observe and not plan.sets_aside(account))
    account = next((account for account in strict if account.limit.on_unbounded != "admit"), None)
    if package in _VENDORS or account is None or live.record.call.input_bound is None:
        return
    call, fits = live.record.call, False
    try:
        body = json.loads(built.content)
        fits = _fits(endpoint, replace(asked, body=body), call, live.record.output_cap)
    except Exception as error:  # noqa: BLE001 - our own bug loosens no strict limit
        swallow("grown", error)
    if not fits:
        call.unbounded, call.least_cap = f"a request that {type(client).__name__[:64]}._prepare_options enlarges", 0
        raise owned(errors_text.unbounded(account, call), account)


def _fits(endpoint: WireFormat, request: Request, call: Call, output_cap: int | None) -> bool:
    goes = endpoint.call(request)
    endpoint.bound(request, goes)
    cap = call.output_cap if output_cap is None else output_cap
    if goes.input_bound is None or call.input_bound is None or goes.input_bound > call.input_bound + _SLACK:
        return False
    if cap is None or not goes.turn:
        return True
    return goes.output_cap is not None and goes.output_cap * goes.choices <= cap * call.choices


def words_of(endpoint: WireFormat, answer: Any) -> str | None:
    """Give the text of an answer, None where it has none that can be read."""
    try:
        said = [part["content"] for message in endpoint.answered(answer) for part in message["parts"] if part["type"] == "text"]
        return "".join(word for word in said if isinstance(word, str)) or None
    except Exception as error:  # noqa: BLE001 - the answer is the user's whatever we make of it
        swallow("words", error)
        return None
