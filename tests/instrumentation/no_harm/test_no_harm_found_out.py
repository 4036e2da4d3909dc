"""The comparison itself can fail: wrappers that do harm are found out, whatever the harm is."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import openai._base_client as base_client
import pytest
from odd_answers import ANSWERS
from operations import ALL
from programs import program
from side_by_side import Case


@contextmanager
def wrapped(harm: Callable[..., Any]) -> Any:
    """Put a wrapper of this kind over ours."""
    before: Any = vars(base_client.SyncAPIClient)["request"]

    def request(self: Any, *args: Any, **kwargs: Any) -> Any:
        return harm(lambda: before.__get__(self)(*args, **kwargs), args, kwargs)

    base_client.SyncAPIClient.request = request  # type: ignore[method-assign]  # as a careless package does
    try:
        yield
    finally:
        base_client.SyncAPIClient.request = before  # type: ignore[method-assign]  # the same


def sends_more(call: Any, args: Any, kwargs: Any) -> Any:
    options = args[1] if len(args) > 1 else kwargs["options"]
    options.json_data = {**options.json_data, "extra": 1}
    return call()


def sends_a_header(call: Any, args: Any, kwargs: Any) -> Any:
    options = args[1] if len(args) > 1 else kwargs["options"]
    options.headers = {"traceparent": "00-1"}
    return call()


def gives_a_copy(call: Any, args: Any, kwargs: Any) -> Any:
    return call().model_dump()


def sets_a_field(call: Any, args: Any, kwargs: Any) -> Any:
    result = call()
    result.system_fingerprint = None
    return result


def raises_its_own(call: Any, args: Any, kwargs: Any) -> Any:
    try:
        return call()
    except Exception as error:
        raise type(error)(str(error), response=error.response, body=error.body) from error  # type: ignore[call-arg,attr-defined]  # a status error


def adds_a_note(call: Any, args: Any, kwargs: Any) -> Any:
    try:
        return call()
    except Exception as error:
        error.add_note("seen")
        raise


def warns(call: Any, args: Any, kwargs: Any) -> Any:
    warnings.warn("instrumented", stacklevel=2)
    return call()


def logs(call: Any, args: Any, kwargs: Any) -> Any:
    logging.getLogger("harm").info("called")
    return call()


def tries_again(call: Any, args: Any, kwargs: Any) -> Any:
    try:
        return call()
    except Exception:
        return call()


def leaks_a_span(call: Any, args: Any, kwargs: Any) -> Any:
    made = call()
    LEAKED.append(TRACERS[0].start_span("leaked"))
    return made


LEAKED: list[Any] = []
TRACERS: list[Any] = []
HARM: dict[Callable[..., Any], tuple[str, str, str]] = {
    sends_more: ("as it is", "as ever", ".sent"),
    sends_a_header: ("as it is", "as ever", ".sent"),
    gives_a_copy: ("as it is", "as ever", ".outcome"),
    sets_a_field: ("as it is", "as ever", ".outcome"),
    raises_its_own: ("as it is", "401", ".outcome.context"),
    adds_a_note: ("as it is", "401", ".outcome.notes"),
    warns: ("as it is", "as ever", ".warnings"),
    logs: ("as it is", "as ever", ".logs"),
    tries_again: ("as it is", "401", ".sent"),
    leaks_a_span: ("as it is", "as ever", "never ended: harmed: leaked"),
}


@pytest.mark.parametrize("harm", HARM, ids=lambda harm: harm.__name__)
def test_harm_is_found_out(harm: Callable[..., Any], side_by_side: Any) -> None:
    request, answer, where = HARM[harm]
    operation = ALL["chat"]
    TRACERS[:] = [side_by_side.capture.tracer_provider.get_tracer("harm")]
    case = Case("harmed", program(operation, "plain", request, "whole"), ANSWERS[answer](operation))
    found = side_by_side.differences([case], around=wrapped(harm))
    assert any(where in line for lines in found.values() for line in lines), found


def test_no_harm_is_found_where_there_is_none(side_by_side: Any) -> None:
    operation = ALL["chat"]
    case = Case("unharmed", program(operation, "plain", "as it is", "whole"), ANSWERS["as ever"](operation))
    assert side_by_side.differences([case], around=wrapped(lambda call, args, kwargs: call())) == {}
