"""Compose tools with a gate: where the wrappers of a program's functions meet what judges their calls."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any, cast

from ravi_otel._extras import load
from ravi_otel._instrumentation.tools import Gating, InstrumentedTools, read_choice
from ravi_otel._instrumentation.tools import instrument_tools as _instrument_tools
from ravi_otel._runtime.tool_call import Refused
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy._checks import choice, show
from ravi_otel.policy._contracts import ToolGate


def instrument_tools(
    target: object,
    *,
    supervisor: Any = None,
    approver: Any = None,
    refused: Refused = "raise",
    skip: Collection[str] = (),
    only: Collection[str] | None = None,
) -> InstrumentedTools:
    """Make each public function of a module, class, mapping or list a counted, limited and observed tool call, in its place.

    Of a module the functions that are written in it, by their names; of a class the methods it defines itself, static and class
    methods too; of a mapping its values, under their keys; of a list its functions. Sync or async; signature, result and exceptions
    stay the function's own. The handle's `remove()`, the end of its `with` block, or `uninstrument()` puts the identical objects
    back. Called again it skips what is a tool already. Where it finds no function at all it says so in the log. The functions named
    in `skip` are left as they are, and with `only` all but those.

    With a `supervisor`, which has `review(action, state, policy)` or is a gate, each call is judged first, and `approver` is asked
    where the supervisor escalates; also of what is a tool already. What is refused raises ToolDeniedError, with `refused="result"`
    it returns `error.as_tool_error()` in place of a result, as JSON text where the function is annotated to return `str`. What
    ends the run raises StopRun either way. What no gate can stand before, and whose calls none can judge, is said in the log.

    Raises ConfigurationError for what cannot be changed in place: a tuple, a read-only mapping, one function.
    """
    choice("instrument_tools(refused)", refused, ("raise", "result"))
    choose = read_choice(skip, only)
    if supervisor is not None:
        return _instrument_tools(target, Gating(partial(_gate_for, supervisor, approver), refused), choose)
    if approver is not None or refused != "raise":
        given = "refused" if approver is None else "approver"
        raise ConfigurationError(f"instrument_tools({given}=...) says what becomes of what a supervisor decides. Give supervisor= too.")
    return _instrument_tools(target, None, choose)


def _gate_for(supervisor: Any, approver: Any, functions: Any) -> ToolGate:
    if isinstance(supervisor, type):
        raise ConfigurationError(
            f"instrument_tools(supervisor={supervisor.__name__}) is a class; give an instance, {supervisor.__name__}(...)."
        )
    if not isinstance(supervisor, ToolGate) and not callable(getattr(supervisor, "review", None)):
        raise ConfigurationError(
            f"instrument_tools(supervisor={show(supervisor)}) is neither a supervisor, which has review(action, state, policy), nor a gate."
        )
    return cast("ToolGate", load("ravi_otel.supervisor.gate").gate_for(supervisor, functions, approver, part=True))
