"""Define what a supervisor is asked and answers, and read what a model proposes: one call of a tool, or its final answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeAlias, cast, runtime_checkable

from ravi_otel.errors import RaviError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import Coloured, JsonObject
from ravi_otel.supervisor._arguments import BadArguments, ToolSignature
from ravi_otel.supervisor._json import NotJsonError, NotPlainError, plain, read_json

Action: TypeAlias = dict[str, Any]
"""What is proposed: `{"kind": "tool", "name": str, "args": {...}}` or `{"kind": "final", "answer": str}`."""


class DecisionKind(StrEnum):
    """Name what a supervisor can decide."""

    APPROVE = "approve"
    REVISE = "revise"
    BLOCK = "block"
    ESCALATE = "escalate"


@dataclass(frozen=True, slots=True)
class Decision:
    """Be what a supervisor decides about one action.

    `reason` is a short spelling for programs (`refund_within_auto_limit`). `revised_action` is the whole action to go on with instead, of
    "revise" only; it is validated and reviewed again. `risk_score`, 0 to 1, is told and changes nothing.
    """

    kind: DecisionKind
    reason: str
    revised_action: Mapping[str, Any] | None = None
    risk_score: float | None = None


@runtime_checkable
class Supervisor(Protocol):
    """Decide about what an agent proposes, before it is done."""

    def review(self, action: Action, state: Any, policy: Any) -> Coloured[Decision]:
        """Decide about one action: `state` is what happened in the run so far, `policy` what the gate was given.

        May be asked several times about one action. It changes neither the action nor the state.
        """
        ...


@runtime_checkable
class GateState(Protocol):
    """Remember what was done in a run, so that a supervisor can judge what comes next."""

    def begin(self, tool: str, arguments: JsonObject) -> None:
        """Note that a tool call was let through, in the very step in which it is: others that are judged meanwhile see it."""
        ...

    def end(self, tool: str, arguments: JsonObject, status: str, result: Any) -> None:
        """Note how it ended: `status` is "ok", "error", "refused" (it never ran) or "cancelled"."""
        ...


_TOOL_KEYS: Final = frozenset({"kind", "name", "args"})
_FINAL_KEYS: Final = frozenset({"kind", "answer"})
_SPELLED: Final = frozenset({"missing_required_arg", "extra_tool_args", "bad_arg_type", "unknown_arg_spec"})
_NO_TOOLS: Final[Mapping[str, Collection[str]]] = MappingProxyType({})


class InvalidAction(RaviError):  # noqa: N818 - named as the stop reason it is
    """Refuse what was proposed, before anybody judges it.

    `reason` is the stop reason: "invalid_action:" and one of not_object, non_json, bad_kind, extra_keys_final, bad_final_answer,
    extra_keys_tool, bad_tool_name, bad_tool_args, unknown_tool:T, extra_tool_args:T, missing_required_arg:T:A, bad_arg_type:T:A and
    unknown_arg_spec:T:A. `raw` is what was proposed, as it came; `message` says what is wrong, for a model too.
    """

    def __init__(self, reason: str, message: str, raw: object = None) -> None:
        super().__init__(message)
        self.reason = f"invalid_action:{reason}" if not reason.startswith("invalid_action:") else reason
        self.message = message
        self.raw = raw

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the fields when the error crosses a process."""
        return (type(self), (self.reason, self.message, self.raw))


def read_action(raw: object, signatures: Mapping[str, ToolSignature], *, may_lack: Mapping[str, Collection[str]] | None = None) -> Action:
    """Read a proposed action, an object or its JSON text, into one of the two shapes of `Action`; raises InvalidAction.

    Text and object are read alike. A tool's `args` may be left out or null where it takes none, and are held to its signature, defaults
    filled in; those that `may_lack` names by tool may be absent, for a rule fills them in. The result shares nothing with `raw`.
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
    if args is None:  # as many models write that there are none
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
    """Write a name that a model made up so that it can stand in a stop reason: ASCII, one line, short."""
    return ascii(name)[1:-1][:60]
