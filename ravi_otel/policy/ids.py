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
        return value if type(value) is cls else super().__new__(cls, checks.name("agent_id", value))

    @classmethod
    def checked(cls, value: str, parameter: str = "agent_id", example: str | None = None) -> Self:
        """Return it as it is where it is an AgentId, else as one; an error names the `parameter`, and an `example` of a right name."""
        return value if isinstance(value, cls) else super().__new__(cls, checks.name(parameter, value, example))

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
