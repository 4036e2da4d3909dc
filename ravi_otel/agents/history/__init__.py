"""Keep conversations, and shorten them.

`contract` is what a store is, `memory` and `sqlite` are ours, in a `file` with `owners`, `writing` what messages are as bytes;
`recollection` is what one agent remembers, `ends` has stores forget; `turns` says where a conversation may be cut, `windows` and
`summarizing` cut it.
"""

from __future__ import annotations

from ravi_otel.agents.history.contract import HistoryError, HistoryStore
from ravi_otel.agents.history.memory import MemoryHistory
from ravi_otel.agents.history.recollection import AgentMemory
from ravi_otel.agents.history.sqlite import SqliteHistory
from ravi_otel.agents.history.summarizing import Summarizing
from ravi_otel.agents.history.windows import SlidingWindow, TokenWindow, tokens_of

__all__ = [
    "AgentMemory",
    "HistoryError",
    "HistoryStore",
    "MemoryHistory",
    "SlidingWindow",
    "SqliteHistory",
    "Summarizing",
    "TokenWindow",
    "tokens_of",
]
