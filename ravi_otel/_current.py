"""Know where in the tree of scopes the running code is: one key in the OpenTelemetry context.

The leaf scope rides in the context, so it follows tasks by itself. What attaches here also restores here, and
tolerantly: a `with` body held over a yield, or left in another task, gives back only what it set itself and never logs.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context

LEAF = otel_context.create_key("ravi-otel-leaf")
_KEPT_SLOT = otel_context.create_key("ravi-otel-kept-slot")
_surrounding: Leaf | None = None
_root: Leaf | None = None
_dress: Callable[[Any, Context], Context] | None = None

generation: int = 0
"""How many forks lie between this process and the one that loaded the package; whoever counts forks writes it."""


class Leaf(Protocol):
    """The innermost scope, as much of it as every layer may know."""

    @property
    def facts(self) -> Any:
        """Say which scope this is (a `ScopeFacts`)."""
        ...

    @property
    def parent(self) -> Any:
        """Return the scope around it, None at the root."""
        ...

    @property
    def stranded(self) -> bool:
        """Whether it was left in another context than it was entered in, which still names it."""
        ...

    @property
    def generation(self) -> int:
        """Return the `generation` of the process it belongs to: this one, or one that this one was forked from."""
        ...


def leaf(context: Context | None = None) -> Leaf | None:
    """Return the innermost scope of `context` (default: the current one), else what surrounds the process, None outside any."""
    found: Any = (otel_context.get_current() if context is None else context).get(LEAF)
    if found is not None and found.stranded:
        found = _around(found)
    if found is None or found.generation != generation:
        found = _surrounding
    return None if found is None or found.generation != generation else found


def entered(context: Context | None = None) -> Leaf | None:
    """Return the innermost scope that code entered in `context` (default: the current one); None outside any.

    A thread that outlives the scope it was started in still belongs to it. But a generator that nobody goes on with is ended
    elsewhere, and leaves its caller a context that names a scope the caller never entered.
    """
    found: Any = (otel_context.get_current() if context is None else context).get(LEAF)
    if found is not None and found.stranded:
        found = _around(found)
    return None if found is None or found.generation != generation else found


def _around(stranded: Any) -> Any:
    """Return the nearest scope around that was entered here; None where that is the process's root, which nobody enters."""
    at = stranded.parent
    while at is not None and at.stranded:
        at = at.parent
    return None if at is None or at.parent is None else at


def surround(scope: Leaf | None, root: Leaf | None) -> None:
    """Put the whole process into `scope`: it is the leaf wherever no code entered another. `root` is the process's own."""
    global _surrounding, _root
    _surrounding, _root = scope, root


def root() -> Leaf | None:
    """Return the process's own scope, which work outside any other belongs to; None before there is one."""
    return _root


def with_leaf(scope: Leaf | None) -> Context:
    """Return the current context with `scope` as its leaf, and with what `dress_with` has asked for besides."""
    context = otel_context.set_value(LEAF, scope)
    return context if _dress is None or scope is None else _dress(scope, context)


def without_leaf(context: Context) -> Context:
    """Return `context` without any scope, to keep for long: a scope that only we refer to is one that the program has dropped."""
    kept = dict(context)
    kept.pop(LEAF, None)
    return Context(kept)


def dress_with(dress: Callable[[Any, Context], Context] | None) -> None:
    """Have each context in which a scope is the leaf made into another by `dress`, which never raises; None ends that."""
    global _dress  # noqa: PLW0603 - one process, one way to dress
    _dress = dress


def kept_slot() -> Any:
    """Return the innermost slot that is kept here for an agent to come (a `KeptSlot`); None where there is none."""
    return otel_context.get_value(_KEPT_SLOT)


def with_kept_slot(kept: Any) -> Context:
    """Return the current context with `kept` as the slot that an agent may take, before what is kept around it."""
    current = otel_context.get_current()
    if kept is not None:
        kept.outer = current.get(_KEPT_SLOT)
    return otel_context.set_value(_KEPT_SLOT, kept, current)


def trace_id() -> str | None:
    """Return the trace id of the current span, 32 hexadecimal digits; None where no span is current."""
    place = trace.get_current_span().get_span_context()
    return trace.format_trace_id(place.trace_id) if place.is_valid else None


class Attachment:
    """Make `context` current for a `with` body; who has just asked what is current may say it, and it is not asked again."""

    __slots__ = ("_context", "_previous")

    def __init__(self, context: Context, current: Context | None = None) -> None:
        self._context = context
        self._previous = current

    def __enter__(self) -> None:
        if self._previous is None:
            self._previous = otel_context.get_current()
        otel_context.attach(self._context)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.restore()

    def restore(self) -> bool:
        """Give back what was current; once, and only what this attachment changed. False where another scope is current by now."""
        previous, self._previous = self._previous, None
        if previous is None:
            return True
        current = otel_context.get_current()
        if current is self._context:
            otel_context.attach(previous)
            return True
        # Left in another order or another task: undo our own keys where they still hold our values.
        values = dict(current)
        for key, value in self._context.items():
            if previous.get(key) is not value and values.get(key) is value:
                if key in previous:
                    values[key] = previous[key]
                else:
                    del values[key]
        if len(values) != len(current) or any(current.get(key) is not value for key, value in values.items()):
            otel_context.attach(Context(values))
        return current.get(LEAF) is self._context.get(LEAF)
