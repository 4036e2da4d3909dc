"""What a later call completes: answers made in the background, and conversations that a later request goes on with."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from typing import Final, Protocol

from ravi_otel._forksafe import ForkLock, renew_in_child
from ravi_otel._runtime.stopping import sweep_with
from ravi_otel.hooks._events import CallRecord
from ravi_otel.hooks._listeners import Guarded
from ravi_otel.policy._usage import Call, Reply

MOST_KEPT: Final = 10_000
LONGEST_NAME: Final = 256
LONGEST_S: Final = 3_600.0
FETCHES: Final = "fetch_response"
"""The operation of a look that brought what somebody else's request had used."""


Key = tuple[str, str | None, int | None, str]
"""Who made an answer and where, and the name it has there: what another host says of a name is about something else."""


def key_of(call: Call, name: str | None) -> Key | None:
    """Return the key of what is stored under `name` where `call` is sent; None where it has no name, or one too long to keep."""
    if not name or len(name) > LONGEST_NAME:
        return None
    return call.provider, call.server_address, call.server_port, name


class Collected(Protocol):
    """A call that can still be settled."""

    def collect(self, reply: Reply, at: CallRecord | None) -> CallRecord:
        """Settle it with what the answer tells, at what is held when that is nothing; `at` is the look that brought it."""
        ...


Kept = tuple[float, Collected]
"""A call that waits, and since when, by the monotonic clock."""


class Awaited:
    """Calls that wait for their answer, by its key. One that nobody looks up settles at what it holds: after an hour, or at the end.

    Each is given away once, however many looks come from however many threads.
    """

    def __init__(self) -> None:
        self.kept: OrderedDict[Key, Kept] = OrderedDict()
        self._streamed: OrderedDict[Key, Reply | None] = OrderedDict()
        # One that may be taken twice by one thread: a signal or a finaliser may come in between.
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self.kept)

    def streams(self, key: Key | None) -> None:
        """Note that an answer made in the background is being streamed: a look may end before the stream is left."""
        if key is not None:
            with self._lock:
                self._streamed[key] = None
                while len(self._streamed) > MOST_KEPT:
                    self._streamed.popitem(last=False)

    def early(self, key: Key | None) -> Reply | None:
        """Return what a look at a stream brought before it was left, once; an empty answer where no look will ever find it."""
        if key is None:
            return Reply()
        with self._lock:
            seen = self._streamed.get(key)
            if seen is not None:
                del self._streamed[key]
        return seen

    def keep(self, key: Key | None, call: Collected) -> None:
        """Keep a call; one whose answer has no name can never be found, and is given up at once."""
        seen: Reply | None = None
        known: Kept | None = None
        with self._lock:
            if key is not None:
                seen = self._streamed.pop(key, None)
                if seen is None:
                    known = self.kept.pop(key, None)
                    self.kept[key] = time.monotonic(), call
        if key is None or seen is not None:
            _settle(call, seen or Reply())
        if known is not None:
            _settle(known[1], Reply())
        self.sweep()

    def sweep(self) -> None:
        """Give up what waits for too long; runs with every drain, so one look at the oldest has to do."""
        self._give_up_since(time.monotonic() - LONGEST_S)

    def give_up(self) -> None:
        """Settle everything that still waits at what it holds; for the end of the process."""
        self._give_up_since(math.inf)

    def _give_up_since(self, latest: float) -> None:
        over: list[Collected] = []
        with self._lock:
            while self.kept:
                key, (since, call) = next(iter(self.kept.items()))
                if len(self.kept) <= MOST_KEPT and since >= latest:
                    break
                del self.kept[key]
                over.append(call)
        for call in over:
            _settle(call, Reply())

    def waits(self, key: Key | None) -> bool:
        """Whether some call waits for this answer."""
        return key is not None and key in self.kept

    def take(self, key: Key | None, reply: Reply) -> Collected | None:
        """Return the call that waits for this answer, once; None when nobody here began it, or it was counted."""
        if key is None or not (self.kept or self._streamed):
            return None
        with self._lock:
            found = self.kept.pop(key, None)
            if found is None and key in self._streamed:
                self._streamed[key] = Reply(reply.id, reply.model, reply.usage, service_tier=reply.service_tier, answers=reply.answers)
        return None if found is None else found[1]

    def ended(self, key: Key | None) -> None:
        """Forget a stream that told its usage itself."""
        if key is not None and self._streamed:
            with self._lock:
                self._streamed.pop(key, None)

    def forget(self) -> None:
        """Start anew in a forked child: what waits is the parent's."""
        self._lock = threading.RLock()
        self.kept.clear()
        self._streamed.clear()


def _settle(call: Collected, reply: Reply) -> None:
    with Guarded("awaited"):  # our own bug never reaches whoever comes next
        call.collect(reply, None)


def write_usage(record: CallRecord, used: CallRecord) -> None:
    """Write on the record of a look what it brought of `used`; one that asked no model becomes a `fetch_response`."""
    record.usage, record.cost_nano, record.price_date = used.usage, used.cost_nano, used.price_date
    record.cost_source = None if used.cost_nano is None else used.cost_source
    record.call.model = record.call.model or used.call.model
    if not record.call.generative and used.usage is not None and used.usage.source != "reserved":
        record.call.operation, record.call.fetches = FETCHES, True


AWAITED: Final = Awaited()
"""The process's one table."""

sweep_with(AWAITED.sweep, AWAITED.kept)  # nothing here is found by a collection
renew_in_child(AWAITED.forget)


LONGEST_MEMORY: Final = 10_000


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
        """Return the messages so far of what a request goes on with; 0 for none that is known."""
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
            while len(self._sizes) > LONGEST_MEMORY:
                self._sizes.popitem(last=False)


CONVERSATIONS: Final = Conversations()
"""The process's one table."""
