"""Put a gate before the tools of MCP servers, by the name of the server, even of one that nobody has connected to yet.

A gate checks a call against the tool's schema, which is known once the program has listed the server's tools; until then any arguments fit.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from keyword import iskeyword
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self, cast

from ravi_otel._forksafe import ForkLock
from ravi_otel._instrumentation.tools import Choice, GateFor
from ravi_otel._runtime.mcp_sessions import read_field
from ravi_otel._runtime.tool_call import Refused
from ravi_otel.errors import ConfigurationError, ToolDeniedError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import ToolGate

PREFIX: Final = "mcp:"
ANY_SERVER: Final = "*"
_MOST_TOOLS: Final = 1_000
_MOST_TEXT: Final = 65_536
_NOT_GIVEN: Final = object()
_KINDS: Final[Mapping[Any, Any]] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list[Any],
    "object": dict[str, Any],
}

_lock: Final = ForkLock()
_gated: Final[list[GatedServer]] = []


@dataclass(frozen=True, slots=True)
class Schema:
    """The input schema of a tool, as its server lists it; `text` identifies it."""

    text: str
    properties: Mapping[str, Any]
    required: frozenset[str]
    closed: bool

    @classmethod
    def read(cls, given: object) -> Schema | None:
        """Return the schema that a server sent, which may be anything; None for what is no schema of an object."""
        if not isinstance(given, dict):
            return None
        schema = cast("dict[str, Any]", given)
        properties: Any = schema.get("properties", {})
        text = json.dumps(schema, sort_keys=True, default=str)
        if not isinstance(properties, dict) or len(text) > _MOST_TEXT:
            return None
        required: Any = schema.get("required")
        known = cast("dict[str, Any]", properties)
        needed = frozenset(name for name in known if isinstance(required, list) and name in required)
        return cls(text, known, needed, schema.get("additionalProperties") is False)

    def signature(self) -> inspect.Signature:
        """Return it as the signature of a function with keyword parameters, each with its plain type, where it has one."""
        parameters = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if name in self.required else _NOT_GIVEN,
                annotation=_kind_of(schema),
            )
            for name, schema in self.properties.items()
            if name.isidentifier() and not iskeyword(name)
        ]
        if not self.closed or len(parameters) < len(self.properties):
            parameters.append(inspect.Parameter(_free("more", self.properties), inspect.Parameter.VAR_KEYWORD, annotation=Any))
        return inspect.Signature(parameters)


def _kind_of(schema: object) -> Any:
    kind: Any = cast("dict[str, Any]", schema).get("type") if isinstance(schema, dict) else None
    return _KINDS.get(kind, Any) if isinstance(kind, str) else Any


def _free(name: str, taken: Mapping[str, Any]) -> str:
    while name in taken:
        name += "_"
    return name


def keep_schemas(known: dict[str, Schema], listing: Any) -> None:
    """Note the input schemas of the tools that a server lists, up to a thousand."""
    for tool in getattr(listing, "tools", None) or ():
        given = read_field(tool, "input_schema", "inputSchema")
        schema, name = Schema.read(given), getattr(tool, "name", None)
        if schema is not None and isinstance(name, str) and (name in known or len(known) < _MOST_TOOLS):
            known[name] = schema


@dataclass(frozen=True, slots=True)
class GateOfTool:
    """The gate before one tool; `returns` means that its refusal is returned as a result, and not raised.

    A tool that cannot be reviewed, because its name is invalid, is `denied` whatever its arguments.
    """

    gate: ToolGate | None
    returns: bool
    denied: ToolDeniedError | None = None


class GatedServer:
    """The gate that `instrument_tools("mcp:NAME", supervisor=...)` puts before a server's tools; as a context manager for one block.

    `names` are the tools called so far. `skipped` is always empty: tools are known only once they are called or listed.
    """

    def __init__(self, server: str, gate_for: GateFor, refused: Refused, choice: Choice | None) -> None:
        self.server = server
        self.skipped: Mapping[str, str] = MappingProxyType({})
        self._gate_for = gate_for
        self._returns = refused == "result"
        self._choice = choice
        self._gates: dict[str, tuple[Schema | None, GateOfTool]] = {}

    def __repr__(self) -> str:
        return f"<GatedServer {checks.show(self.server)}>"

    @property
    def names(self) -> tuple[str, ...]:
        """The tools called so far."""
        return tuple(self._gates)

    def is_for(self, server: str | None) -> bool:
        """Whether it stands before the tools of this server."""
        return self.server in {ANY_SERVER, server}

    def gate(self, tool: str, schema: Schema | None) -> GateOfTool | None:
        """Return the gate of a tool, made anew where the schema has changed; None for a tool that is left out."""
        if self._choice is not None and self._choice.leaves(tool):
            return None
        with _lock.own:
            known = self._gates.get(tool)
            if known is None or known[0] != schema:
                known = self._gates[tool] = (schema, self._review(tool, schema))
                while len(self._gates) > _MOST_TOOLS:
                    del self._gates[next(iter(self._gates))]
        return known[1]

    def _review(self, tool: str, schema: Schema | None) -> GateOfTool:
        flaw = checks.flaw_of_name(tool)
        if flaw:
            shown, why = checks.show(tool), f"its name {flaw}, so no gate can judge it"
            message = f"tool {shown} was not run: {why}. Have its server give it one of 1 to {checks.MAX_NAME} printable characters."
            return GateOfTool(None, self._returns, ToolDeniedError(message, tool=shown, reason=why, stop_reason="tool_bad_name"))
        return GateOfTool(self._gate_for({tool: _shown(tool, schema)}), self._returns)

    def remove(self) -> None:
        """Remove the gate from these tools."""
        with _lock.own:
            if self in _gated:
                _gated.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.remove()


def _shown(tool: str, schema: Schema | None) -> Callable[..., Any]:
    """Return a function with the signature of a tool, for a gate to inspect."""

    def remote(**_: Any) -> Any:  # never called: a gate only inspects it
        raise TypeError(f"{tool} is run by its server")

    remote.__name__ = remote.__qualname__ = tool
    remote.__annotations__ = {}
    if schema is not None:
        remote.__signature__ = schema.signature()  # type: ignore[attr-defined]  # what `inspect.signature` looks for first
    return remote


def gate_server(target: str, gate_for: GateFor, refused: Refused, choice: Choice | None) -> GatedServer:
    """Put a gate before the tools of every server with the name that follows `mcp:` in `target`; "mcp:*" is any server."""
    server = target.removeprefix(PREFIX).strip()
    if not target.startswith(PREFIX) or not server:
        raise ConfigurationError(
            f"instrument_tools({checks.show(target)}) names no MCP server. Write mcp: and what the server calls itself, such as mcp:notes, "
            "or mcp:* for any."
        )
    made = GatedServer(server, gate_for, refused, choice)
    with _lock.own:
        _gated.append(made)
    return made


def remove_gates() -> None:
    """Remove the gates from the tools of all servers."""
    with _lock.own:
        _gated.clear()


def gate_of(server: str | None, tool: str, schema: Schema | None) -> GateOfTool | None:
    """Return the gate before a server's tool: one for that very server before one for any, and the latest of several."""
    found = [each for each in reversed(_gated) if each.is_for(server)] if _gated else []
    for each in sorted(found, key=lambda one: one.server == ANY_SERVER):
        gate = each.gate(tool, schema)
        if gate is not None:
            return gate
    return None
