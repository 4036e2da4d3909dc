"""A program's own gate, for the tests of the walk through one."""

from __future__ import annotations

import asyncio
import inspect

from ravi_otel._runtime.tool_call import ToolCall
from ravi_otel.policy._contracts import GateVerdict

YES = GateVerdict(allowed=True)
NO = GateVerdict(allowed=False, reason="too much", stop_reason="supervisor_block:over_the_cap")
END = GateVerdict(allowed=False, reason="enough", stop_reason="human_rejected", ends_run=True)
METHODS = ("before", "admit", "after", "audit")


class OwnGate:
    """Answer each question as the test says: a verdict, a function of what is asked, or an error to raise."""

    def __init__(self, **answers):
        self._answers = {"before": YES, "admit": YES, "after": YES, "audit": None, **answers}
        self.asked, self.requests, self.outcomes = [], [], []

    def _answer(self, question, request, *more):
        self.asked.append(question)
        self.requests.append(request)
        answer = self._answers[question]
        if isinstance(answer, BaseException):
            raise answer
        return answer(request, *more) if callable(answer) else answer

    def before(self, request):
        return self._answer("before", request)

    def admit(self, request, arguments):
        return self._answer("admit", request, arguments)

    def after(self, request, result):
        return self._answer("after", request, result)

    def audit(self, request, outcome):
        self.outcomes.append(outcome)
        return self._answer("audit", request, outcome)

    @property
    def outcome(self):
        assert len(self.outcomes) == 1
        assert self.asked[-1] == "audit"
        return self.outcomes[0]


class AsyncGate(OwnGate):
    """The same, in coroutines that let others go first."""

    async def before(self, request):
        await asyncio.sleep(0)
        return self._answer("before", request)

    async def admit(self, request, arguments):
        await asyncio.sleep(0)
        return self._answer("admit", request, arguments)

    async def after(self, request, result):
        await asyncio.sleep(0)
        return self._answer("after", request, result)

    async def audit(self, request, outcome):
        await asyncio.sleep(0)
        self.outcomes.append(outcome)
        return self._answer("audit", request, outcome)


class Walked:
    """Make the gated tool calls of a test in one way: of which colour the caller, the tool and the gate are."""

    def __init__(self, caller, tool="sync", gate="sync"):
        self.caller, self.tool = caller, tool
        self.gate = AsyncGate if gate == "async" else OwnGate
        self.runs = []

    def fn(self, body=lambda **given: given):
        runs = self.runs
        if self.tool == "async":

            async def act(**given):
                await asyncio.sleep(0)
                runs.append(given)
                return body(**given)

            return act

        def act(**given):
            runs.append(given)
            return body(**given)

        return act

    def __call__(self, gate, body=lambda **given: given, arguments=None, **more):
        return self.walk(self.fn(body), gate, {"x": 1} if arguments is None else arguments, **more)

    def walk(self, fn, gate, arguments, name="act", **more):
        if self.caller == "sync":
            return ToolCall(name, fn, arguments, gate, **more).run()

        async def main():
            return await ToolCall(name, fn, arguments, gate, **more).run_async()

        return asyncio.run(main())


WAYS = {
    "sync": ("sync", "sync", "sync"),
    "async": ("async", "async", "sync"),
    "async-gate": ("async", "async", "async"),
    "sync-tool-awaited": ("async", "sync", "async"),
}


def call(fn, *args, **kwargs):
    """Call a tool of either colour to its end."""
    if not inspect.iscoroutinefunction(fn):
        return fn(*args, **kwargs)
    return asyncio.run(fn(*args, **kwargs))
