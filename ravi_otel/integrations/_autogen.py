"""AutoGen: assistants, each answer of which is a turn, and their tools. Read in autogen-agentchat 0.7.5, autogen-core 0.7.5.

Alone and in a team, an assistant works in `on_messages_stream`. AutoGen sends the model a text of whatever a tool raises, and waits for
ever where anything else on the way to a tool fails: so a refusal also refuses the request that would bring that text to the model. A tool
that hands over to another agent runs elsewhere, and is not wrapped.
"""

from __future__ import annotations

from typing import Any, Final

from ravi_otel.integrations._adapter import Adapter
from ravi_otel.integrations._turns import FrameworkTool

_HANDOFF: Final = "Handoff.handoff_tool."
"""The start of the qualified name of the function that AutoGen makes for a tool that hands over."""


class Agents(Adapter):
    """The assistants, in `autogen_agentchat.agents._assistant_agent`."""

    def follow(self) -> None:
        """Wrap the method that generates one answer."""
        self.agents(self.module.AssistantAgent, "on_messages_stream", lambda agent, _args, _kwargs: agent.name)


class Tools(Adapter):
    """The tools, in `autogen_core.tools._base`."""

    def follow(self) -> None:
        """Wrap the method that runs a tool."""
        self.told_tools(self.module.BaseTool, "run_json", _tool)


def _tool(tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FrameworkTool | None:
    function = getattr(tool, "_func", None)
    if str(getattr(function, "__qualname__", "")).startswith(_HANDOFF):
        return None
    return FrameworkTool(tool.name, kwargs.get("call_id"), args[0] if args else kwargs.get("args"), function)
