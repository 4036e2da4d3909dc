"""Remember how long the conversations are that a provider keeps, of those this process has seen answers of."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from ravi_otel._forksafe import ForkLock
from ravi_otel._runtime.awaited import Key, key_of
from ravi_otel.policy.usage import Call

MOST_KEPT: Final = 10_000


class Conversations:
    """Count the messages behind an answer's id, and behind a conversation's; those used least recently are forgotten first.

    A request that names one we never saw, or have forgotten, counts its own messages only.
    """

    __slots__ = ("_lock", "_sizes")

    def __init__(self) -> None:
        self._sizes: OrderedDict[Key, int] = OrderedDict()
        # One that may be taken twice by one thread: a signal or a finaliser may come in between.
        self._lock = ForkLock()

    def __len__(self) -> int:
        """Count what is remembered."""
        return len(self._sizes)

    def before(self, key: Key | None) -> int:
        """Give the messages so far of what a request goes on with; 0 for none that is known."""
        if key is None or not self._sizes:
            return 0
        with self._lock.own:
            size = self._sizes.get(key, 0)
            if size:
                self._sizes.move_to_end(key)
        return size

    def heard(self, call: Call, name: str | None, answers: int) -> None:
        """Note an answer of so many messages, and what it is called; of a request that counts its messages."""
        if call.messages is None or not answers:
            return
        size = call.messages - call.unchained + answers
        conversation = call.parameters.get("conversation_id")
        self._note(key_of(call, name), size)
        if isinstance(conversation, str):
            self._note(key_of(call, conversation), size)

    def _note(self, key: Key | None, size: int) -> None:
        if key is None:
            return
        with self._lock.own:
            self._sizes[key] = max(size, self._sizes.pop(key, 0))
            while len(self._sizes) > MOST_KEPT:
                self._sizes.popitem(last=False)


CONVERSATIONS: Final = Conversations()
"""The process's one table."""
