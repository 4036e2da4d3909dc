"""Keep conversations, and shorten them.

`_store` says what a store is, and has one in memory and what one agent remembers; `_sqlite` is a store in a file; `_messages` knows where a
conversation may be cut and how it is written; `_compaction` shortens it.
"""

from ravi_otel.agents.history._compaction import SlidingWindow, Summarizing, TokenWindow, tokens_of
from ravi_otel.agents.history._messages import HistoryError
from ravi_otel.agents.history._sqlite import SqliteHistory
from ravi_otel.agents.history._store import AgentMemory, HistoryStore, MemoryHistory
from ravi_otel.policy._contracts import ChatMessage

__all__ = [
    "AgentMemory",
    "ChatMessage",
    "HistoryError",
    "HistoryStore",
    "MemoryHistory",
    "SlidingWindow",
    "SqliteHistory",
    "Summarizing",
    "TokenWindow",
    "tokens_of",
]
