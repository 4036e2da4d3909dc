"""Play the model that the incident desk talks to: what each agent says, and what it waits for.

Agents work side by side, and this program should come out the same each time. So an answer may be held back until others have come
to where the story needs them: `Stage.hold` does it in the HTTP client, after the server has answered.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ravi_otel import SpawnTracker
from ravi_otel.testing import Answer, Request, Text, ToolCalls

_IN_LINE: Final = "somebody stands in line for a slot"
_LONGEST_S: Final = 20.0
_LOOK_EVERY_S: Final = 0.005


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer; it comes once all of `after` have asked: `"rollback 1"` is the first request of that agent."""

    answer: Answer
    after: tuple[str, ...] = ()


def _work(worker: str, task: str, priority: str = "normal", *, must_finish: bool = False) -> tuple[str, dict[str, Any]]:
    return "assign", {"worker": worker, "task": task, "priority": priority, "must_finish": must_finish}


def _look(sight: str) -> tuple[str, dict[str, Any]]:
    return "look_at", {"sight": sight}


_FIRST = [
    _work("timeline", "Write down what happened when.", "background", must_finish=True),
    _work("digest", "Sum up what customers write.", "background"),
    _work("database", "Is it the database?"),
    _work("cache", "Is it the cache?"),
    _work("payments", "Is it the payment service?"),
    _work("search", "Is it the search?"),
    _work("releases", "Was anything released? If that is it, have it rolled back and customers told."),
    _work("network", "Is it the network?"),
]
_URGENT = [
    _work("rollback", "Bring release 811 of checkout back.", "critical"),
    _work("status-page", "Tell customers that checkout is slow, and that it is being put right.", "critical"),
]

SCRIPT: Final[dict[str, tuple[Turn, ...]]] = {
    "lead": (
        Turn(ToolCalls(_FIRST)),
        Turn(Text("Release 812 asked the database once for each item in a basket. It was rolled back at 14:09, and checkout is fast.")),
    ),
    "timeline": (
        Turn(ToolCalls([_look("alerts")], text="14:02 first alert.")),
        Turn(ToolCalls([_look("releases")], text="14:05 the desk begins."), ("rollback 1", "status-page 1")),
        Turn(Text("14:09 release 812 is rolled back.")),
    ),
    "digest": (
        Turn(ToolCalls([_look("tickets")], text="Twenty customers saw the basket turn and turn.")),
        Turn(ToolCalls([_look("tickets")], text="Twenty more gave up at the payment."), ("rollback 1", "status-page 1")),
        Turn(Text("Forty customers, all of them at the checkout.")),  # which it does not come to, unless nobody holds answers back
    ),
    "database": (
        Turn(ToolCalls([_work("query-plans", "Which queries have got slow?")]), ("traceroute 1",)),
        Turn(Text("Nobody was free for the query plans. Forty times the queries since 14:01, each of them fast."), (_IN_LINE,)),
    ),
    "query-plans": (Turn(Text("Each of them takes two milliseconds.")),),  # denied before it asks
    "cache": (Turn(Text("No: 97 % of the look-ups hit, as ever."), (_IN_LINE,)),),
    "payments": (Turn(Text("No: a payment takes 300 ms, as ever."), (_IN_LINE,)),),
    "search": (Turn(Text("No: nothing unusual."), (_IN_LINE,)),),
    "releases": (
        Turn(ToolCalls([_look("releases")])),
        Turn(ToolCalls(_URGENT), ("timeline 2", "digest 2", "database 2")),
        Turn(ToolCalls([("call_off", {"worker": "network", "reason": "it was release 812"})])),
        Turn(Text("Yes: release 812. It is rolled back, and customers know.")),
    ),
    "network": (Turn(ToolCalls([_work("traceroute", "Follow the packets to all shops.")])), Turn(Text("No: nothing is lost."))),
    "traceroute": (Turn(Text("Nothing is lost."), ("nobody",)),),  # called off before
    "rollback": (Turn(Text("Release 811 of checkout is live again."), (_IN_LINE,)),),
    "status-page": (Turn(Text("Customers are told."), (_IN_LINE,)),),
}


def answer(request: Request) -> Answer:
    """Answer an agent by its name and by how far it is."""
    return _turn(request.body).answer


class Stage:
    """Hold answers back until their cue. One event loop at a time; give its two hooks to the HTTP client, whichever library that is of."""

    def __init__(self) -> None:
        self._given: set[str] = set()
        self.hooks: dict[str, list[Callable[..., Any]]] = {"request": [self.note], "response": [self.hold]}

    async def note(self, request: Any) -> None:
        """Note which agent asks, for how manieth time."""
        body = json.loads(request.content)
        self._given.add(f"{_who(body)} {_number(body) + 1}")

    async def hold(self, response: Any) -> None:
        """Wait for what the answer comes after, 20 s at most."""
        cues, until = set(_turn(json.loads(response.request.content)).after), time.monotonic() + _LONGEST_S
        while not cues <= self._given and time.monotonic() < until:
            slots = SpawnTracker.current()
            if slots is not None and slots.stats().waiting:
                self._given.add(_IN_LINE)
            await asyncio.sleep(_LOOK_EVERY_S)


def _turn(body: Any) -> Turn:
    turns = SCRIPT[_who(body)]
    return turns[min(_number(body), len(turns) - 1)]


def _who(body: Any) -> str:
    found = re.match(r"You are ([\w-]+), at an incident desk", str(body["messages"][0]["content"]))
    return "" if found is None else found[1]


def _number(body: Any) -> int:
    return sum(1 for message in body["messages"] if message["role"] == "assistant")
