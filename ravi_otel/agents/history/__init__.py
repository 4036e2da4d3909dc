"""Keep conversations, and shorten them.

Where what is:

* stores: `contract` is what a store is, `memory` and `sqlite` are ours; `file` is the database of the latter, `owners` tells whether the
  processes of a run are still there, `writing` turns messages into bytes.
* one agent's: `recollection` is what one agent remembers, `ends` has stores forget a run when it ends.
* shortening: `turns` says where a conversation may be cut, `windows` cut it, `summarizing` has its beginning summed up.
"""

from __future__ import annotations

from ravi_otel.agents.history.contract import HistoryError, HistoryStore
from ravi_otel.agents.history.memory import MemoryHistory
from ravi_otel.agents.history.recollection import AgentMemory
from ravi_otel.agents.history.sqlite import SqliteHistory
from ravi_otel.agents.history.summarizing import Summarizing
from ravi_otel.agents.history.windows import SlidingWindow, TokenWindow, tokens_of
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
