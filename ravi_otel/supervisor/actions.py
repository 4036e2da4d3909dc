"""Read what a model proposes to do: one call of a tool, or its final answer, and nothing beside."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, cast

from ravi_otel.errors import RaviError
from ravi_otel.policy import _checks as checks
from ravi_otel.supervisor.decisions import Action
from ravi_otel.supervisor.hashing import NotJsonError, NotPlainError, plain, read_json
from ravi_otel.supervisor.signatures import BadArguments, ToolSignature

_TOOL_KEYS: Final = frozenset({"kind", "name", "args"})
_FINAL_KEYS: Final = frozenset({"kind", "answer"})
_SPELLED: Final = frozenset({"missing_required_arg", "extra_tool_args", "bad_arg_type", "unknown_arg_spec"})
_NOBODY: Final[Mapping[str, Collection[str]]] = MappingProxyType({})


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
    given = _object(raw)
    kind = given.get("kind")
    if type(kind) is str and kind == "tool":
        return _tool(given, signatures, may_lack or _NOBODY, raw)
    if type(kind) is str and kind == "final":
        return _final(given, raw)
    raise InvalidAction("bad_kind", f'An action has "kind" "tool" or "final", not {checks.show(kind)}.', raw)


def _object(raw: object) -> dict[Any, Any]:
    given = raw
    if type(raw) is str:
        try:
            given = read_json(raw)
        except NotJsonError as error:
            raise InvalidAction("non_json", f"What was proposed cannot be relied on. Its contents {error}", raw) from None
    if type(given) not in (dict, MappingProxyType):
        raise InvalidAction("not_object", 'An action is one JSON object, such as {"kind": "final", "answer": "Done."}.', raw)
    return dict(cast("Mapping[Any, Any]", given))


def _tool(given: dict[Any, Any], signatures: Mapping[str, ToolSignature], may_lack: Mapping[str, Collection[str]], raw: object) -> Action:
    _only(given, _TOOL_KEYS, "extra_keys_tool", raw)
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
        raise InvalidAction(f"unknown_tool:{_plain_name(name)}", f"There is no tool {name[:60]!a}{hint}.", raw)
    try:
        read = signature.read(args, may_lack=may_lack.get(name, ()))
    except BadArguments as error:
        raise InvalidAction(error.spelling if error.code in _SPELLED else "bad_tool_args", error.message, raw) from None
    return {"kind": "tool", "name": name, "args": read}


def _final(given: dict[Any, Any], raw: object) -> Action:
    _only(given, _FINAL_KEYS, "extra_keys_final", raw)
    answer = given.get("answer")
    try:
        answer = plain(answer)
    except NotPlainError as error:
        raise InvalidAction("bad_final_answer", f'The "answer" {error.what}', raw) from None
    if type(answer) is not str or not answer.strip():
        raise InvalidAction("bad_final_answer", f'A final action has an "answer", text that is not blank, not {checks.show(answer)}.', raw)
    return {"kind": "final", "answer": answer.strip()}


def _only(given: dict[Any, Any], known: Collection[str], reason: str, raw: object) -> None:
    extra = next((key for key in given if type(key) is not str or key not in known), None)
    if extra is not None:
        raise InvalidAction(reason, f"An action of this kind has {', '.join(sorted(known))}, and no {ascii(str(extra))[:80]}.", raw)


def _plain_name(name: str) -> str:
    """Write a name that a model made up so that it can stand in a stop reason: ASCII, one line, short."""
    return ascii(name)[1:-1][:60]
