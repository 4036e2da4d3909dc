"""AutoGen: assistants, each answer to whoever asks being a turn, and their tools. Read in autogen-agentchat 0.7.5, autogen-core 0.7.5.

Alone and in a team `on_messages_stream` is what has an assistant work. AutoGen makes a text for the model of whatever a tool raises, and
waits for ever where anything else on the way to a tool does: a refusal refuses the request, too, that would bring that text to the model.
A tool that hands over to another agent runs outside of that, and is not wrapped.
"""

from __future__ import annotations

from typing import Any, Final

from ravi_otel.integrations._adapter import Adapter
from ravi_otel.integrations._turns import FrameworkTool

_HANDOFF: Final = "Handoff.handoff_tool."
"""Within what AutoGen makes the function of a tool that hands over."""


class Agents(Adapter):
    """The assistants, in `autogen_agentchat.agents._assistant_agent`."""

    def follow(self) -> None:
        """Wrap what has one answer."""
        self.agents(self.module.AssistantAgent, "on_messages_stream", lambda agent, _args, _kwargs: agent.name)


class Tools(Adapter):
    """The tools, in `autogen_core.tools._base`."""

    def follow(self) -> None:
        """Wrap what runs a tool."""
        self.told_tools(self.module.BaseTool, "run_json", _tool)


def _tool(tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FrameworkTool | None:
    function = getattr(tool, "_func", None)
    if str(getattr(function, "__qualname__", "")).startswith(_HANDOFF):
        return None
    return FrameworkTool(tool.name, kwargs.get("call_id"), args[0] if args else kwargs.get("args"), function)
