"""Libraries that are not wrapped, the real ones, held to limits and told of as any other call of a model."""

import asyncio
import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path

import pytest

if not os.environ.get("RAVI_TEST_PROVIDERS"):
    pytest.skip("make providers runs these, in an environment of their own", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parent))  # as the modules beside the tests have it
sys.path.insert(0, str(Path(__file__).parents[1] / "launch"))
from launched import Desk
from provider_libraries import CASES
from provider_table import TABLE

import ravi_otel
from ravi_otel._instrumentation.formats.dialects import format_for_request
from ravi_otel._instrumentation.formats.format import Host, Request
from ravi_otel._runtime.stopping import drain
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.testing import Capture, ScriptedLLM, Text

pytestmark = pytest.mark.timeout(300)
SAID, GIVEN, MADE = "It is in Oslo.", 1_000, 20
PRICE = {"input": 1.0, "output": 1.0}
COST = (GIVEN + MADE) / 1_000_000
EVERY = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
LAUNCHED = [case for case in CASES if case.stream is (case.colour == "async")]


def described(asked):
    """Read a request as it arrived."""
    path = f"{asked.path}?{asked.query}" if asked.query else asked.path
    found = format_for_request("auto", "POST", path, asked.body)
    return found.call(Request("POST", path, asked.body, Host("x", assumed=False, address="h", port=1), stream=False))


class Stage:
    """A server of one library's format, and the program that asks it."""

    def __init__(self, case, script):
        self.case = case
        self.server = ScriptedLLM(script)
        self.capture = Capture()

    def __enter__(self):
        self.server.__enter__()
        self.capture.__enter__()
        return self

    def __exit__(self, *ended):
        ravi_otel.uninstrument()
        self.capture.__exit__(*ended)
        self.server.__exit__(*ended)

    def instrument(self, **options):
        address = self.server.url.removeprefix("http://")
        ravi_otel.instrument(
            tracer_provider=self.capture.tracer_provider,
            meter_provider=self.capture.meter_provider,
            logger_provider=self.capture.logger_provider,
            providers={address: self.case.provider},
            **{"prices": {self.case.model: PRICE}, **options},
        )

    @property
    def sent(self):
        """Give the requests that reached the model; what LiteLLM asks of a server beside them is none."""
        return [each for each in self.server.requests if not each.path.endswith("/api/show")]

    def ask(self, times=1):
        """Ask one after the other; give the answers, and what was raised in place of one."""
        client = self.case.make(self.server.url)
        if self.case.colour == "sync":
            return [caught(lambda: self.case.ask(client)) for _ in range(times)]

        async def program():
            return [await awaited(self.case.ask(client)) for _ in range(times)]

        return asyncio.run(program())

    def ask_at_once(self, times):
        """Ask so often at the same moment."""
        client = self.case.make(self.server.url)
        if self.case.colour == "sync":
            together = threading.Barrier(times)

            def program():
                together.wait(timeout=60)
                return caught(lambda: self.case.ask(client))

            with ThreadPoolExecutor(times) as pool:
                return [each.result() for each in [pool.submit(copy_context().run, program) for _ in range(times)]]

        async def all_of_them():
            return await asyncio.gather(*(awaited(self.case.ask(client)) for _ in range(times)))

        return asyncio.run(all_of_them())


def caught(ask):
    try:
        return ask()
    except Exception as error:
        return error


async def awaited(answer):
    try:
        return await answer
    except Exception as error:
        return error


def refused(found):
    """Tell whether a refusal of ours is what was raised, or what that was raised for."""
    while isinstance(found, BaseException):
        if isinstance(found, BudgetExhaustedError):
            return True
        found = found.__cause__ or found.__context__
    return False


ANSWER = (SAID, (GIVEN, MADE))


@EVERY
def test_the_answer_is_the_same_and_what_was_asked_and_used_is_told(case):
    with Stage(case, Text(SAID, usage=(GIVEN, MADE))) as stage:
        assert stage.ask() == [ANSWER]
        stage.instrument()
        with ravi_otel.run("answer") as run:
            assert stage.ask() == [ANSWER]
        drain()
        stats = run.stats()
        assert (stats.requests, stats.input_tokens, stats.output_tokens) == (1, GIVEN, MADE)
        assert stats.cost_usd == pytest.approx(COST)
        host, port = stage.server.url.removeprefix("http://").split(":")
        (span,) = [each for each in stage.capture.spans() if "gen_ai.request.model" in each.attributes]
    told = span.attributes
    assert (told["server.address"], told["server.port"]) == (host, int(port))
    assert told["gen_ai.provider.name"] == case.provider
    assert told["gen_ai.operation.name"] == case.operation
    assert told["gen_ai.request.model"] == case.model
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (GIVEN, MADE)
    assert told["gen_ai.response.finish_reasons"] == ("stop",)
    TABLE.note(case, seen=True, counted=stats.input_tokens + stats.output_tokens == GIVEN + MADE, priced=stats.cost_usd is not None)


@EVERY
@pytest.mark.parametrize("limit", ["requests=3", f"tokens={3 * (GIVEN + MADE)}", f"cost={3 * COST:.6f}"])
def test_one_after_the_other_a_limit_lets_through_what_it_says(case, limit):
    with Stage(case, Text(SAID, usage=(GIVEN, MADE))) as stage:
        stage.instrument(admission="after")
        with ravi_otel.run("loop", limits=[limit]) as run:
            found = stage.ask(5)
        drain()
        assert (len(stage.sent), run.stats().requests) == (3, 3)
    assert found[:3] == [ANSWER] * 3
    assert [refused(each) for each in found[3:]] == [True, True]
    TABLE.note(case, raises=type(found[3]).__name__)


@EVERY
def test_32_at_once_send_what_a_limit_of_requests_allows_and_no_more(case):
    with Stage(case, Text(SAID, usage=(GIVEN, MADE))) as stage:
        stage.instrument()
        with ravi_otel.run("crowd", limits=["requests=5"]) as run:
            found = stage.ask_at_once(32)
        drain()
        assert (len(stage.sent), run.stats().requests) == (5, 5)
    assert sum(each == ANSWER for each in found) == 5
    assert sum(refused(each) for each in found) == 27


@EVERY
@pytest.mark.parametrize("limit", ["tokens=6000", "cost=0.006"])
def test_32_at_once_never_pass_a_strict_limit_as_answers_are_cut(case, limit):
    def within_its_cap(asked):
        cap = described(asked).output_cap
        return Text(SAID, usage=(9, 10_000 if cap is None else cap))

    with Stage(case, within_its_cap) as stage:
        stage.instrument(admission="strict")
        with ravi_otel.run("crowd", limits=[limit]) as run:
            found = stage.ask_at_once(32)
        drain()
        stats, sent = run.stats(), stage.sent
        if case.signed:  # nobody can cut it, so that nothing is sent
            assert (sent, all(map(refused, found))) == ([], True)
            TABLE.note(case, cut="refused")
            return
        assert 1 <= len(sent) <= 32
        assert stats.requests == len(sent)
        assert stats.input_tokens + stats.output_tokens <= 6_000
        assert all(described(each).output_cap is not None for each in sent)
    TABLE.note(case, cut="yes")


@pytest.mark.parametrize("case", LAUNCHED, ids=[case.name for case in LAUNCHED])
def test_an_unchanged_program_under_the_launcher_is_stopped_by_a_limit(case, tmp_path):
    with ScriptedLLM(Text(SAID, usage=(GIVEN, MADE))) as server:
        desk = Desk(server, tmp_path)
        program = Path(__file__).parent / "programs" / "ask.py"
        done = desk.launch(sys.executable, str(program), case.name, "5", flags=["--json", "--limit", "requests=3"], timeout=240)
        sent = [each for each in server.requests if not each.path.endswith("/api/show")]
    report = json.loads(done.err.splitlines()[-1])
    assert (done.status, len(sent), report["uncovered"]) == (4, 3, [])
    TABLE.note(case, launched=True)
