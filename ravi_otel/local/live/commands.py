"""Do what an operator asks of this process: check each word of it, act on the real scopes, and leave a trace."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.spawn_tracker import Lease, SpawnTracker
from ravi_otel.errors import RaviError
from ravi_otel.hooks._events import Notice
from ravi_otel.hooks._listeners import swallow
from ravi_otel.local.live.peers import Peer
from ravi_otel.local.live.protocol import (
    MOST_ANSWER,
    MOST_SCOPES,
    MOST_SENTENCE,
    MOST_TEXT,
    OPS,
    PRIORITIES,
    VERSION,
    LiveError,
    as_fields,
    is_number,
    is_text,
    read_line,
    write_line,
)
from ravi_otel.local.live.watching import Watch
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._limits import ScopeKind

_log = logging.getLogger("ravi_otel")
_BY_HAND: Final = "cancelled by an operator"
_CANCELLED: Final = (ScopeKind.RUN, ScopeKind.AGENT)  # which have a token of their own; whatever else has none is closed

Fields = Mapping[str, Any]


class _NoError(Exception):
    """Say in one sentence why something is not done; it is an answer, and no error of the program."""


def answer(line: bytes, watch: Watch, peer: Peer) -> bytes:
    """Give the line that answers a request; never raises for anything that is in it."""
    try:
        request = read_line(line)
        op = request.get("op")
        if not isinstance(op, str) or op not in OPS:
            return _no(f"op={checks.show(op)} is unknown. It is one of: {', '.join(OPS)}.")
        if op == "state":
            return _state(watch)
        _obey(op, request, watch, peer)
        return write_line({"v": VERSION, "ok": True})
    except (LiveError, _NoError, RaviError) as error:
        return _no(str(error))
    except Exception as error:  # noqa: BLE001 - our own bug ends neither the program nor the server
        swallow("live.answer", error)
        return _no("the process cannot do that, because of a fault of ravi-otel's own. Its log says more.")


def _no(sentence: str) -> bytes:
    cut = sentence if len(sentence) <= MOST_SENTENCE else f"{sentence[: MOST_SENTENCE - 1]}…"
    return write_line({"v": VERSION, "ok": False, "error": cut})


def _state(watch: Watch) -> bytes:
    most = MOST_SCOPES
    while True:
        told = as_fields(watch.photograph(most))
        runs, left_out = told.pop("runs"), told.pop("left_out")
        line = write_line({"v": VERSION, "ok": True, "process": told, "runs": runs, "left_out": left_out})
        if len(line) <= MOST_ANSWER or most == 1:
            return line
        most //= 2  # names as long as can be, of characters that take six in JSON


def _obey(op: str, request: Fields, watch: Watch, peer: Peer) -> None:
    scope_id = request.get("scope_id")
    if not is_text(scope_id):
        raise _NoError(f"scope_id={checks.show(scope_id)} must be the id of a scope, as `state` gives it.")
    scope = watch.find(str(scope_id))
    if scope is None:
        raise _NoError(f"scope_id={checks.show(scope_id)} is not open any more.")
    act, details = _ACTS[op](scope, request)
    about = {"op": op, **details, "by_uid": peer.uid, "by_pid": peer.pid}
    words = ", ".join(f"{name}={checks.show(value)}" for name, value in details.items() if value is not None)
    said = f"{op} of {scope.facts.kind.value} {checks.show(scope.facts.name)}{f' ({words})' if words else ''} by {peer}"
    notice = Notice("command", scope.facts, said, about)
    if op == "cancel":  # told before: with it the run may end, and with the run who listens
        _leave_trace(scope, notice)
        act()
        return
    act()
    _leave_trace(scope, notice)


def _leave_trace(scope: Scope, notice: Notice) -> None:
    _log.warning("ravi-otel: %s, over the live socket", notice.text)
    scope.engine.listeners.told(notice)


Act = tuple[Callable[[], object], dict[str, Any]]


def _cancel(scope: Scope, request: Fields) -> Act:
    reason = request.get("reason")
    if reason is not None and not is_text(reason, MOST_SENTENCE):
        raise _NoError(f"reason={checks.show(reason)} must be a text of at most {MOST_SENTENCE} characters.")
    if reason is not None:  # which stands in an exception's text, in logs and on terminals
        reason = "".join(each if each.isprintable() else " " for each in str(reason)).strip() or None
    token = scope.cancellation
    if scope.facts.kind not in _CANCELLED or token is None:
        return scope.close, {"reason": reason}
    return (lambda: token.cancel(_BY_HAND if reason is None else str(reason))), {"reason": reason}


def _pause(scope: Scope, request: Fields) -> Act:
    del request

    def act() -> None:
        spawn, lease, agent_id = _slot(scope)
        if lease.is_root:
            raise _NoError(f"agent {checks.show(agent_id)} is the root of its run, which is never paused: cancel the run instead.")
        if lease.paused:
            raise _NoError(f"agent {checks.show(agent_id)} is paused already.")
        if not spawn.pause(lease):
            raise _NoError(f"agent {checks.show(agent_id)} has no slot any more: it is about to end.")

    return act, {}


def _resume(scope: Scope, request: Fields) -> Act:
    del request

    def act() -> None:
        spawn, lease, agent_id = _slot(scope)
        if not spawn.resume(lease):
            raise _NoError(f"agent {checks.show(agent_id)} is not paused.")

    return act, {}


def _reprioritize(scope: Scope, request: Fields) -> Act:
    word = request.get("priority")
    if not isinstance(word, str) or word not in PRIORITIES:
        raise _NoError(f"priority={checks.show(word)} is unknown. It is one of: {', '.join(PRIORITIES)}.")

    def act() -> None:
        spawn, lease, _ = _slot(scope)
        spawn.reprioritize(lease, PRIORITIES[word])

    return act, {"priority": word}


def _set_limit(scope: Scope, request: Fields) -> Act:
    kind, value = request.get("kind"), request.get("value")
    if not is_text(kind, MOST_TEXT):
        raise _NoError(f"kind={checks.show(kind)} must be the kind of a limit, as `state` gives it.")
    if not isinstance(value, (int, float)) or not is_number(value):
        raise _NoError(f"value={checks.show(value)} must be a number, in the kind's unit.")
    amount = int(value) if float(value).is_integer() else value
    return (lambda: scope.set_limit(str(kind), amount)), {"kind": kind, "value": amount}


def _slot(scope: Scope) -> tuple[SpawnTracker, Lease, str]:
    """Give the tracker of an agent's slot, the slot itself, since several agents may have one id, and the id."""
    if scope.facts.kind is not ScopeKind.AGENT:
        raise _NoError(f"{scope.facts.kind.value} {checks.show(scope.facts.name)} has no slot: only agents have.")
    if scope.spawn is None or scope.lease is None:
        raise _NoError(f"agent {checks.show(scope.facts.name)} has no slot: it is in no run that counts its agents.")
    return scope.spawn, scope.lease, scope.lease.agent_id


_ACTS: Final[Mapping[str, Callable[[Scope, Fields], Act]]] = {
    "cancel": _cancel,
    "pause": _pause,
    "resume": _resume,
    "reprioritize": _reprioritize,
    "set_limit": _set_limit,
}
