"""instrument() and uninstrument(): once, reversible, and harmless whatever telemetry does."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import openai
import openai._base_client as base_client
import pytest
import warm_starts
import wrapt
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Sampler

import ravi_otel
from ravi_otel._runtime.state import STATE
from ravi_otel.errors import ConfigurationError
from ravi_otel.testing import Capture, ScriptedLLM, Text

ASK: dict[str, Any] = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Say hello."}]}
PLACES = [
    (base_client.SyncAPIClient, "request"),
    (base_client.AsyncAPIClient, "request"),
    (base_client.BaseClient, "_build_request"),
    (base_client.BaseClient, "_calculate_retry_timeout"),
]


def methods() -> list[Any]:
    return [owner.__dict__[name] for owner, name in PLACES]


def asked(server: ScriptedLLM, **settings: Any) -> Any:
    with openai.OpenAI(base_url=server.base_url, api_key="k", **settings) as client:
        return client.chat.completions.create(**ASK)


def given(capture: Capture) -> dict[str, Any]:
    return {
        "tracer_provider": capture.tracer_provider,
        "meter_provider": capture.meter_provider,
        "logger_provider": capture.logger_provider,
    }


def run_program(program: str, *, warm: bool = False, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, with warnings as errors."""
    known = {key: value for key, value in os.environ.items() if not key.startswith(("OTEL_", "RAVI_"))}
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(program)]
    start = warm_starts.run if warm else subprocess.run
    done = start(command, env=known | environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_uninstrument_puts_the_identical_methods_back() -> None:
    before = methods()
    ravi_otel.instrument()
    assert all(now is not then for now, then in zip(methods(), before, strict=True))
    ravi_otel.uninstrument()
    assert all(now is then for now, then in zip(methods(), before, strict=True))


def test_uninstrument_twice_or_without_instrument_does_nothing() -> None:
    ravi_otel.uninstrument()
    ravi_otel.instrument()
    ravi_otel.uninstrument()
    ravi_otel.uninstrument()


def test_the_handle_is_a_context_manager() -> None:
    before = methods()
    with ravi_otel.instrument() as handle:
        assert isinstance(handle, ravi_otel.Instrumentation)
        assert all(now is not then for now, then in zip(methods(), before, strict=True))
    assert all(now is then for now, then in zip(methods(), before, strict=True))


def test_an_old_handle_leaves_the_new_instrumentation_alone() -> None:
    with ravi_otel.instrument():
        newer = ravi_otel.instrument(limits=["requests=5"])
    assert ravi_otel.instrument() is newer


def test_instrument_again_with_the_same_or_nothing_gives_the_same_handle_and_wraps_once() -> None:
    first = ravi_otel.instrument(limits=["requests=5"])
    wrapped = methods()
    assert ravi_otel.instrument() is first
    assert ravi_otel.instrument(limits=["requests=5"]) is first
    assert all(now is then for now, then in zip(methods(), wrapped, strict=True))


def test_instrument_with_other_arguments_never_forgets_what_process_limits_have_counted() -> None:
    handle = ravi_otel.instrument(limits=["requests=1"])
    with pytest.raises(ravi_otel.ConfigurationError, match=r"uninstrument\(\) first"):
        ravi_otel.instrument(limits=["requests=2"])
    assert ravi_otel.instrument() is handle


def test_instrument_with_other_arguments_replaces_it_and_still_wraps_once() -> None:
    before = methods()
    ravi_otel.instrument()
    ravi_otel.instrument(limits=["requests=1"])
    assert all(now.__wrapped__ is then for now, then in zip(methods(), before, strict=True))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"limits": "tokens=5"}, "must be a list"),
        ({"limits": [3]}, "which is no limit"),
        ({"limits": ["tokens=x"]}, "tokens"),
        ({"enforcement": "off"}, "enforcement"),
        ({"policy": "nowhere.toml"}, "nowhere.toml cannot be read"),
        ({"policy": 5}, "is no path"),
        ({"profile": "ci"}, "there is no policy file"),
        ({"admission": "guess"}, "admission"),
    ],
)
def test_arguments_that_cannot_be_used_are_named_and_nothing_is_wrapped(arguments: dict[str, Any], says: str) -> None:
    before = methods()
    with pytest.raises(ConfigurationError, match=says):
        ravi_otel.instrument(**arguments)
    assert all(now is then for now, then in zip(methods(), before, strict=True))


def test_somebody_who_wraps_over_us_keeps_his_wrapper_and_ours_falls_silent() -> None:
    seen: list[str] = []

    def theirs(wrapped: Callable[..., Any], _: Any, args: Any, kwargs: Any) -> Any:
        seen.append("theirs")
        return wrapped(*args, **kwargs)

    original = methods()[0]
    with Capture() as capture, ScriptedLLM(Text("hi")) as server:
        ravi_otel.instrument(**given(capture))
        over = wrapt.FunctionWrapper(base_client.SyncAPIClient.__dict__["request"], theirs)
        base_client.SyncAPIClient.request = over  # type: ignore[method-assign,assignment]  # what another library does
        try:
            asked(server)
            assert (seen, len(capture.spans())) == (["theirs"], 1)
            ravi_otel.uninstrument()
            assert base_client.SyncAPIClient.__dict__["request"] is over
            asked(server)
            assert (len(seen), len(capture.spans())) == (2, 1)
            ravi_otel.instrument(**given(capture))
            asked(server)
            assert (len(seen), len(capture.spans())) == (3, 2)  # one span, though an inert wrapper of ours lies beneath
            ravi_otel.uninstrument()
        finally:
            base_client.SyncAPIClient.request = original  # type: ignore[method-assign]  # the test cleans up after itself


def test_limits_of_the_process_hold_and_end_with_the_instrumentation() -> None:
    with ScriptedLLM(Text("hi")) as server:
        with ravi_otel.instrument(limits=["requests=2"]):
            asked(server)
            asked(server)
            with pytest.raises(ravi_otel.BudgetExhaustedError):
                asked(server)
        asked(server)
        assert len(server.requests) == 3


def test_shadow_mode_tells_and_refuses_nothing() -> None:
    with Capture() as capture, ScriptedLLM(Text("hi")) as server:
        with ravi_otel.instrument(**given(capture), limits=["requests=1"], enforcement="observe"):
            asked(server)
            asked(server)
        assert len(server.requests) == 2
        assert capture.events("ravi.limit.exceeded")


@pytest.mark.parametrize("first", ["import openai", "ravi_otel.instrument()"])
def test_it_works_before_and_after_openai_is_imported(first: str) -> None:
    second = "ravi_otel.instrument()" if first == "import openai" else "import openai"
    program = f"""
        import sys
        import ravi_otel
        assert "openai" not in sys.modules
        {first}
        {second}
        import openai
        from ravi_otel.testing import ScriptedLLM, Text
        with ScriptedLLM(Text("hi")) as server, ravi_otel.run("r") as run:
            with openai.OpenAI(base_url=server.base_url, api_key="k") as client:
                client.chat.completions.create(model="gpt-4o-mini", messages=[{{"role": "user", "content": "x"}}])
        print(run.stats().requests)
        ravi_otel.uninstrument()
        assert not hasattr(openai._base_client.SyncAPIClient.__dict__["request"], "__wrapped__")
    """
    assert run_program(program, RAVI_RAISE_BUGS="1").stdout.strip() == "1"


def test_uninstrumented_before_openai_is_imported_nothing_is_wrapped() -> None:
    program = """
        import ravi_otel
        ravi_otel.instrument()
        ravi_otel.uninstrument()
        import openai
        assert not hasattr(openai._base_client.SyncAPIClient.__dict__["request"], "__wrapped__")
    """
    run_program(program)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_of_an_open_run_calls_against_the_process_without_hanging() -> None:
    program = """
        import os, signal, warnings
        import openai, ravi_otel
        from ravi_otel._runtime.state import STATE
        from ravi_otel.testing import ScriptedLLM, Text
        warnings.simplefilter("ignore", DeprecationWarning)
        ASK = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "x"}]}
        with ScriptedLLM(Text("hi")) as server:
            ravi_otel.instrument(limits=["requests=3"])
            with openai.OpenAI(base_url=server.base_url, api_key="k") as client, ravi_otel.run("r", limits=["requests=1"]) as run:
                client.chat.completions.create(**ASK)
                STATE.engine.ledger._lock.acquire()  # as if another thread were in the middle of a step
                child = os.fork()
                if child == 0:
                    signal.alarm(20)
                    answers = 0
                    try:
                        with openai.OpenAI(base_url=server.base_url, api_key="k") as own:
                            for _ in range(5):
                                own.chat.completions.create(**ASK)
                                answers += 1
                    except ravi_otel.BudgetExhaustedError as error:
                        os._exit(10 + answers if error.scope == "process" else 1)
                    os._exit(2)
                STATE.engine.ledger._lock.release()
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), run.stats().requests, len(server.requests))
    """
    assert run_program(program, warm=True).stdout.split() == ["13", "1", "4"]


# -- telemetry that fails ---------------------------------------------------------------------------------------------


class Bad(SpanProcessor, SpanExporter, Sampler):
    """Fail at everything OpenTelemetry calls."""

    def __init__(self, error: type[BaseException]) -> None:
        self._error = error

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        raise self._error

    def on_end(self, span: Any) -> None:
        raise self._error

    def export(self, spans: Any) -> SpanExportResult:
        raise self._error

    def should_sample(self, *args: Any, **kwargs: Any) -> Any:
        raise self._error

    def get_description(self) -> str:
        return "bad"

    def shutdown(self) -> None:
        """Nothing to end."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True


def provider(place: str, error: type[BaseException]) -> TracerProvider:
    bad = Bad(error)
    made = TracerProvider(sampler=bad, shutdown_on_exit=False) if place == "sampler" else TracerProvider(shutdown_on_exit=False)
    if place == "processor":
        made.add_span_processor(bad)
    elif place == "exporter":
        made.add_span_processor(SimpleSpanProcessor(bad))
    return made


@pytest.mark.parametrize("error", [ValueError, MemoryError, RecursionError])
@pytest.mark.parametrize("place", ["processor", "exporter", "sampler"])
def test_tracing_that_fails_never_reaches_the_call(place: str, error: type[Exception], monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.delenv("RAVI_RAISE_BUGS")
    with ScriptedLLM(Text("hi", usage=(5, 5))) as server, ravi_otel.instrument(tracer_provider=provider(place, error)):
        with ravi_otel.run("r", limits=["requests=1"]) as run, ravi_otel.agent("a"):
            assert asked(server).choices[0].message.content == "hi"
            with pytest.raises(ravi_otel.BudgetExhaustedError):
                asked(server)
        assert (run.stats().requests, run.stats().total_tokens) == (1, 10)


POINTS = [
    "opentelemetry.context.get_current",
    "opentelemetry.context.attach",
    "opentelemetry.context.set_value",
    "opentelemetry.trace.set_span_in_context",
    "ravi_otel._runtime.model_call.entered",
    "ravi_otel._runtime.state.State.locate",
    "ravi_otel._runtime.model_call.ModelCall._reserve",
    "ravi_otel._runtime.model_call.ModelCall._admitted",
    "ravi_otel._runtime.model_call.ModelCall.attempt",
    "ravi_otel._runtime.charging.Attempts.pay",
    "ravi_otel._runtime.model_call.ModelCall._close",
    "ravi_otel._runtime.model_call.ModelCall._emit_ended",
    "ravi_otel._enforcement.clock.SystemClock.monotonic_ns",
    "ravi_otel._enforcement.ledger.memory.MemoryLedger.reserve",
    "ravi_otel._enforcement.ledger.memory.MemoryLedger.settle",
    "ravi_otel._telemetry.providers.Pipeline.parent",
    "ravi_otel._telemetry.metrics.CallMetrics.record",
    "ravi_otel._pricing.PriceBook.card",
    "ravi_otel._pricing.PriceBook.cost",
    "ravi_otel._runtime.model_call.ModelCall.answered",
    "ravi_otel._runtime.model_call.ModelCall.fail",
    "ravi_otel._runtime.model_call.ModelCall._is_settler",
    "ravi_otel._runtime.model_call.ModelCall._leave_nothing_held",
    "ravi_otel._runtime.model_call.ModelCall._is_dropped",
    "ravi_otel._runtime.stopping.Blocked",
    "ravi_otel._enforcement.scope.Scope.compile_plan",
    "ravi_otel._enforcement.plan.Plan.accounts",
    "ravi_otel._enforcement.scope.Scope.overdue",
    "ravi_otel._enforcement.scope.Scope.left_ns",
    "ravi_otel._enforcement.scope.Scope.is_over",
    "ravi_otel._instrumentation.client_seam.body_of",
    "ravi_otel._instrumentation.client_seam.read_headers",
    "ravi_otel._instrumentation.client_seam.ClientCall.ask_for_usage",
    "ravi_otel._instrumentation.streams.hide_usage",
    "ravi_otel._instrumentation.client_profile.ClientProfile.host_of",
    "ravi_otel._instrumentation.streams.FollowedStream.begin",
    "ravi_otel._instrumentation.client_seam.read_result",
    "ravi_otel._instrumentation.client_seam.failure_of",
    "ravi_otel._instrumentation.formats.chat.ChatCompletions.call",
    "ravi_otel._instrumentation.formats.chat.ChatCompletions.reply",
    "ravi_otel._instrumentation.formats.chat.ChatCollector.add",
    "ravi_otel._instrumentation.formats.chat.ChatCollector.reply",
]

LIMITS_OF_ALL = ["tokens=1M", "cost=5usd", "time=1h"]


FAULTS = [(point, ValueError) for point in POINTS] + [(point, (MemoryError, RecursionError)[at % 2]) for at, point in enumerate(POINTS)]


@pytest.mark.parametrize(("point", "error"), FAULTS)
def test_a_fault_at_any_point_never_reaches_the_call(point: str, error: type[Exception], monkeypatch: Any) -> None:
    monkeypatch.delenv("RAVI_RAISE_BUGS")

    def fails(*_: Any, **__: Any) -> Any:
        raise error

    server = ScriptedLLM([Text("hi"), Text("one two"), Text("bye")])
    with Capture() as capture, server, ravi_otel.instrument(**given(capture)):  # noqa: SIM117 - one line would be too long
        with (
            openai.OpenAI(base_url=server.base_url, api_key="k") as client,
            ravi_otel.run("r", limits=["tokens=1M", "cost=5usd", "time=1h"]),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(point, fails)
                assert client.chat.completions.create(**ASK).choices[0].message.content == "hi"
                stream = client.chat.completions.create(**ASK, stream=True)
                assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "one two"
                with pytest.raises(openai.NotFoundError):
                    client.models.retrieve("nobody")
            assert client.chat.completions.create(**ASK).choices[0].message.content == "bye"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_passes_unchanged(error: type[BaseException]) -> None:
    raised = error("now")

    class Interrupted(openai.OpenAI):
        def _prepare_options(self, options: Any) -> Any:
            raise raised

    with ravi_otel.instrument(), ravi_otel.run("r", limits=["tokens=1000"]) as run:
        with Interrupted(api_key="k") as client, pytest.raises(error) as seen:
            client.chat.completions.create(**ASK)
        assert seen.value is raised
        assert len(STATE.engine.ledger) == 0  # type: ignore[arg-type]  # the ledger of one process knows its length
        assert run.stats().requests == 0
