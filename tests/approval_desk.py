"""Ask a queue of approvals, and answer it as another process would."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import anyio
import anyio.to_thread

from ravi_otel.supervisor import ApprovalAnswer, ApprovalRequest
from ravi_otel.supervisor._json import fingerprint
from ravi_otel.supervisor.approval._queue import open_queue

COLOURS = ["sync", "asyncio", "trio"]
NOW = 1_800_000_000.0
_numbers = itertools.count(1)


class Clock:
    def __init__(self):
        self.now = NOW

    def __call__(self):
        return self.now


def requested(arguments=None, *, expires_s=60.0, scope="run/agent", **changes):
    arguments = {"user_id": 42, "amount_usd": 1200} if arguments is None else arguments
    return ApprovalRequest(
        **{
            "id": f"request-{next(_numbers)}",
            "tool": "issue_refund",
            "arguments": arguments,
            "fingerprint": fingerprint("issue_refund", arguments, scope, "v1"),
            "scope": scope,
            "reason": "high_refund_requires_human",
            "requested_at": NOW,
            "expires_at": None if expires_s is None else NOW + expires_s,
            "policy_version": "v1",
            **changes,
        }
    )


def until(condition, seconds=20.0):
    """Wait until `condition` gives something, and give that."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.005)
    return found


def desk(where, clock=lambda: NOW):
    """Be another process at the same queue, a file or a Redis."""
    return open_queue(where, clock=clock, create=True)


def pending(where, clock=lambda: NOW):
    return until(lambda: desk(where).exists() and patiently(where, clock, lambda at: at.all(pending=True, most=9)))


def patiently(path, clock, act):
    at = desk(path, clock)
    return at.retry(partial(act, at))


def answered(path, approved=True, clock=lambda: NOW, **facts):
    (stored,) = pending(path, clock)
    answer = ApprovalAnswer(approved, **{"who": "anna", "comment": "fine", **facts})
    return patiently(path, clock, lambda at: at.answer(stored, answer, login="me"))


class Asked:
    """Ask on a thread or in an event loop."""

    def __init__(self, queue, request, colour):
        self.queue, self.request = queue, request
        self.thread = ThreadPoolExecutor(1)
        self.result = self.thread.submit(self._sync if colour == "sync" else partial(anyio.run, self._async, backend=colour))

    def _sync(self):
        return self.queue.ask(self.request)

    async def _async(self):
        return await self.queue.ask(self.request)

    def answer(self):
        try:
            return self.result.result(20)
        finally:
            self.thread.shutdown()


COLOURS = ["sync", "asyncio", "trio"]
