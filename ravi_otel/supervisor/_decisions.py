"""What a supervisor reviews and decides, and the reader of the actions that a model proposes: a tool call, or its final answer."""

from __future__ import annotations

import copy
import functools
import hashlib
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, is_dataclass
from enum import Enum, StrEnum
from json import dumps  # as it is now: the program may make tools of that module's functions
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeAlias, cast, runtime_checkable

from ravi_otel.errors import RaviError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import Coloured, JsonObject
from ravi_otel.supervisor._arguments import BadArguments, ToolSignature
from ravi_otel.supervisor._json import NotJsonError, NotPlainError, plain, read_json
from ravi_otel.supervisor.approval._request import ANYBODY, Approver, Approvers

Action: TypeAlias = dict[str, Any]
"""A proposed action: `{"kind": "tool", "name": str, "args": {...}}` or `{"kind": "final", "answer": str}`."""


class DecisionKind(StrEnum):
    """What a supervisor can decide."""

    APPROVE = "approve"
    REVISE = "revise"
    BLOCK = "block"
    ESCALATE = "escalate"


@dataclass(frozen=True, slots=True)
class Decision:
    """A supervisor's decision about one action.

    `reason` is a short identifier for programs (`refund_within_auto_limit`). `revised_action`, of "revise" only, is the whole action that
    replaces the proposed one; it is validated and reviewed again. `risk_score`, 0 to 1, is only reported.
    """

    kind: DecisionKind
    reason: str
    revised_action: Mapping[str, Any] | None = None
    risk_score: float | None = None


@runtime_checkable
class Supervisor(Protocol):
    """A reviewer that decides about the actions an agent proposes, before they run."""

    def review(self, action: Action, state: Any, policy: Any) -> Coloured[Decision]:
        """Return the decision about one action; `state` is what happened in the run so far, `policy` is the gate's.

        It may be called several times for one action, and must change neither the action nor the state.
        """
        ...


@runtime_checkable
class GateState(Protocol):
    """A record of the calls in a run, by which a supervisor judges later ones."""

    def begin(self, tool: str, arguments: JsonObject) -> None:
        """Record that a tool call was let through; the gate does both at once, so that concurrent reviews see the call."""
        ...

    def end(self, tool: str, arguments: JsonObject, status: str, result: Any) -> None:
        """Record how the call ended: `status` is "ok", "error", "refused" (it never ran) or "cancelled"."""
        ...


_TOOL_KEYS: Final = frozenset({"kind", "name", "args"})
_FINAL_KEYS: Final = frozenset({"kind", "answer"})
_SPELLED: Final = frozenset({"missing_required_arg", "extra_tool_args", "bad_arg_type", "unknown_arg_spec"})
_NO_TOOLS: Final[Mapping[str, Collection[str]]] = MappingProxyType({})


class InvalidAction(RaviError):  # noqa: N818 - named as the stop reason it is
    """A proposed action that cannot be read, refused before any review.

    `reason` is the stop reason: "invalid_action:" and one of not_object, non_json, bad_kind, extra_keys_final, bad_final_answer,
    extra_keys_tool, bad_tool_name, bad_tool_args, unknown_tool:T, extra_tool_args:T, missing_required_arg:T:A, bad_arg_type:T:A and
    unknown_arg_spec:T:A. `raw` is the proposal as it came; `message` says what is wrong, for a model too.
    """

    def __init__(self, reason: str, message: str, raw: object = None) -> None:
        super().__init__(message)
        self.reason = f"invalid_action:{reason}" if not reason.startswith("invalid_action:") else reason
        self.message = message
        self.raw = raw

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the error with its fields, for pickle."""
        return (type(self), (self.reason, self.message, self.raw))


def read_action(raw: object, signatures: Mapping[str, ToolSignature], *, may_lack: Mapping[str, Collection[str]] | None = None) -> Action:
    """Read a proposed action, an object or its JSON text, into one of the two shapes of `Action`; raise InvalidAction.

    A tool's `args` may be missing or null if it takes none; they must satisfy its signature, and defaults are filled in. Arguments that
    `may_lack` names, by tool, may be missing, because a rule fills them in. The result shares nothing with `raw`.
    """
    given = _read_object(raw)
    kind = given.get("kind")
    if type(kind) is str and kind == "tool":
        return _read_tool_action(given, signatures, may_lack or _NO_TOOLS, raw)
    if type(kind) is str and kind == "final":
        return _read_final(given, raw)
    raise InvalidAction("bad_kind", f'An action has "kind" "tool" or "final", not {checks.show(kind)}.', raw)


def _read_object(raw: object) -> dict[Any, Any]:
    given = raw
    if type(raw) is str:
        try:
            given = read_json(raw)
        except NotJsonError as error:
            raise InvalidAction("non_json", f"What was proposed cannot be relied on. Its contents {error}", raw) from None
    if type(given) not in (dict, MappingProxyType):
        raise InvalidAction("not_object", 'An action is one JSON object, such as {"kind": "final", "answer": "Done."}.', raw)
    return dict(cast("Mapping[Any, Any]", given))


def _read_tool_action(
    given: dict[Any, Any], signatures: Mapping[str, ToolSignature], may_lack: Mapping[str, Collection[str]], raw: object
) -> Action:
    _refuse_extra_keys(given, _TOOL_KEYS, "extra_keys_tool", raw)
    name = given.get("name")
    if type(name) is not str or checks.flaw_of_name(name) is not None:
        raise InvalidAction("bad_tool_name", f'A tool action has the tool\'s "name", not {checks.show(name)}.', raw)
    args: Any = given.get("args")
    if args is None:  # many models write null for no arguments
        args = cast("dict[str, Any]", {})
    if type(args) not in (dict, MappingProxyType):
        raise InvalidAction("bad_tool_args", f'A tool action has "args", an object, not {checks.show(args)}.', raw)
    signature = signatures.get(name)
    if signature is None:
        close = checks.nearest(name, signatures)
        hint = f", did you mean {close!r}" if close else ""
        raise InvalidAction(f"unknown_tool:{_ascii_name(name)}", f"There is no tool {name[:60]!a}{hint}.", raw)
    try:
        read = signature.read(args, may_lack=may_lack.get(name, ()))
    except BadArguments as error:
        raise InvalidAction(error.spelling if error.code in _SPELLED else "bad_tool_args", error.message, raw) from None
    return {"kind": "tool", "name": name, "args": read}


def _read_final(given: dict[Any, Any], raw: object) -> Action:
    _refuse_extra_keys(given, _FINAL_KEYS, "extra_keys_final", raw)
    answer = given.get("answer")
    try:
        answer = plain(answer)
    except NotPlainError as error:
        raise InvalidAction("bad_final_answer", f'The "answer" {error.what}', raw) from None
    if type(answer) is not str or not answer.strip():
        raise InvalidAction("bad_final_answer", f'A final action has an "answer", text that is not blank, not {checks.show(answer)}.', raw)
    return {"kind": "final", "answer": answer.strip()}


def _refuse_extra_keys(given: dict[Any, Any], known: Collection[str], reason: str, raw: object) -> None:
    extra = next((key for key in given if type(key) is not str or key not in known), None)
    if extra is not None:
        raise InvalidAction(reason, f"An action of this kind has {', '.join(sorted(known))}, and no {ascii(str(extra))[:80]}.", raw)


def _ascii_name(name: str) -> str:
    """Return a name that a model made up as one short ASCII line, for a stop reason."""
    return ascii(name)[1:-1][:60]


# -- what a gate decides by ------------------------------------------------------------------------------------------


_DEEPEST: Final = 3


_MOST_OBJECTS: Final = 500


def policy_text(value: object) -> str:
    """Return a value as text that changes with the value: objects by their fields, since a `repr` may be no more than an address.

    Plain data and dataclasses are written in full. Of other objects, such as a client with its connections, only some near the value are;
    the rest, and objects without fields such as locks, are written as their identity.
    """
    try:
        return dumps(value, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return dumps(_PolicyWriter().rows(value))


class _PolicyWriter:
    """A breadth-first writer of a value, which visits each object once."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._ahead: deque[tuple[Any, int]] = deque()
        self._alive: list[Any] = []  # so that no other object gets the same id
        self._objects = 0

    def rows(self, value: Any) -> list[Any]:
        """Return a row for each object, which refers to other objects by number."""
        rows = [self._refer(value, 0)]
        while self._ahead:
            given, depth = self._ahead.popleft()
            rows.append(self._row(given, depth))
        return rows

    def _refer(self, value: Any, depth: int) -> Any:
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, (int, float, str, bytes, Enum, type)) or callable(value):
            return [type(value).__qualname__, repr(value)]  # a bound method is new each time, but its repr has the object's address
        known = self._numbers.get(id(value))
        if known is None:
            known = self._numbers[id(value)] = len(self._numbers)
            self._alive.append(value)
            self._ahead.append((value, depth))
        return [known]

    def _row(self, given: Any, depth: int) -> Any:
        if isinstance(given, Mapping):
            pairs = cast("Mapping[Any, Any]", given).items()  # type: ignore[redundant-cast]  # pyright knows nothing of what is in it
            return [[self._refer(each, depth) for each in pair] for pair in sorted(pairs, key=lambda pair: _repr_of(pair[0]))]
        if isinstance(given, (list, tuple)):
            return [self._refer(each, depth) for each in cast("list[Any]", given)]
        if isinstance(given, (set, frozenset)):
            return [self._refer(each, depth) for each in sorted(cast("set[Any]", given), key=_repr_of)]
        fields = _fields(given)
        if fields and not is_dataclass(given):
            self._objects += 1
            depth += 1
            if depth > _DEEPEST or self._objects > _MOST_OBJECTS:
                return _identity_of(given)
        return [type(given).__qualname__, {name: self._refer(each, depth) for name, each in fields.items()}] if fields else _repr_of(given)


def _repr_of(value: object) -> str:
    """Return the object's `repr`, or its identity if that is only an address."""
    said = repr(value)
    return _identity_of(value) if " at 0x" in said else said


def _identity_of(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__} {id(value)}"


def _fields(given: object) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in type(given).__mro__:
        slots: Any = vars(kind).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else list(slots):
            if name not in ("__dict__", "__weakref__") and hasattr(given, name):
                found[name] = getattr(given, name)
    return found | dict(getattr(given, "__dict__", {}))


class AuditSink(Protocol):
    """A log of what happens at the gate; a call is refused if writing raises."""

    def note(
        self,
        what: Any,
        *,
        run_id: str | None,
        agent_name: str | None,
        tool: str,
        op_id: str,
        arguments: Mapping[str, Any] | str | None,
        **facts: Any,
    ) -> None:
        """Write one entry; `facts` are the audit log's own, each by its name."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GateTerms:
    """The settings by which a gate decides."""

    supervisor: Supervisor | None
    approver: Approver | None
    policy: Any
    audit: AuditSink | None
    read_only: frozenset[str]
    expires_s: float | None
    policy_version: str | None
    approvers: Approvers = ANYBODY

    def version(self) -> str:
        """Return the current version of supervisor and policy; an approval under another version is void."""
        if self.policy_version is not None:
            return self.policy_version
        policy = "null" if self.policy is None else policy_text(self.policy)
        return _sha256_of("none" if self.supervisor is None else _version_of(self.supervisor), policy)

    def policy_now(self) -> Any:
        """Return a copy of the policy, so that a change during a review has no effect on it.

        A policy that cannot be copied is returned as it is.
        """
        if self.policy is None:
            return None
        try:
            return copy.deepcopy(self.policy)
        except Exception:  # noqa: BLE001 - a lock or a connection in it; whatever a copy of the program's own raises
            return self.policy

    def may_lack(self, tool: str) -> Collection[str]:
        """Return the arguments of a tool that the supervisor fills in when they are missing."""
        ask = getattr(self.supervisor, "may_lack", None)
        return cast("Collection[str]", ask(tool)) if callable(ask) else ()


@functools.lru_cache(maxsize=64)
def _sha256_of(*said: str) -> str:
    return hashlib.sha256(dumps(said).encode()).hexdigest()


NOTHING_DECIDES: Final = _sha256_of("none", "null")
"""The version of a gate that has neither a supervisor nor a policy."""


def _version_of(supervisor: object) -> str:
    own = getattr(supervisor, "version", None)
    name = f"{type(supervisor).__module__}.{type(supervisor).__qualname__}"
    if own is None or callable(own):
        return name
    if isinstance(own, str):
        return f"{name} {own}"
    return f"{name} {policy_text(own)}"
