"""Offer a program's functions to a model as tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ravi_otel.policy.contracts import JsonObject


@dataclass(frozen=True, slots=True)
class AgentTool:
    """Name one function as a tool; what is left out is read from the function: its name, its docstring, its signature.

    `parameters` is the JSON schema of the arguments, as a model sees it.
    """

    fn: Callable[..., Any]
    name: str | None = None
    description: str | None = None
    parameters: JsonObject | None = None


ToolLike: TypeAlias = "Callable[..., Any] | AgentTool | tuple[Mapping[str, Any], Callable[..., Any]]"
"""A function, sync or async; one with another name; or the tool as the openai client takes it, with its function."""
