"""Name agents and topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from ravi_otel.policy import checks


class AgentId(str):
    """Name an agent: 1 to 256 printable characters.

    It is text, so a plain string is accepted wherever an AgentId is, equals it, and finds it in a mapping.
    """

    __slots__ = ()

    def __new__(cls, value: str) -> Self:
        """Check the name; raise ConfigurationError for an empty or unprintable one."""
        return super().__new__(cls, checks.name("agent_id", value))

    def __reduce__(self) -> tuple[Any, ...]:
        """Be checked again on arrival in another process."""
        return (AgentId, (str(self),))


@dataclass(frozen=True, slots=True)
class TopicId:
    """Address a stream of messages: what it is about (`type`) and whose it is (`source`)."""

    type: str
    source: str

    def __post_init__(self) -> None:
        """Check both names."""
        checks.name("type", self.type)
        checks.name("source", self.source)

    def __str__(self) -> str:
        return f"{self.type}/{self.source}"
