"""Hold an agent that another one has started in its background."""

from __future__ import annotations


class SpawnedAgent:
    """Be an agent at work in the background of another; `AgentContext.ask` talks to it."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id
