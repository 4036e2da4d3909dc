"""Print what a call costs with us, as ratios to the bare client and to a hand-written floor, in one run.

    python benchmarks/call_cost.py [--rounds 15] [--calls 200]

The floor is what anybody would write by hand: one span with 15 attributes and two histogram records around the call.
Variants take turns, so that a machine that slows down slows them all; the figures are medians of CPU time per call.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import openai
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

import ravi_otel
from ravi_otel._flow import run_sync
from ravi_otel.enforcement.ledger.contract import Line, Reservation, new_op_id
from ravi_otel.enforcement.scope import Scope
from ravi_otel.runtime.state import STATE

BODY = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"gpt-4o-mini-2024-07-18","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"Hello!"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}}'
)
MESSAGES: Any = [{"role": "user", "content": "Say hello."}]


def client() -> openai.OpenAI:
    try:
        httpx = importlib.import_module("httpx2")
    except ImportError:
        httpx = importlib.import_module("httpx")
    answer = httpx.MockTransport(lambda _: httpx.Response(200, content=BODY, headers={"content-type": "application/json"}))
    return openai.OpenAI(api_key="none", base_url="http://model.invalid/v1", http_client=httpx.Client(transport=answer))


def floor(call: Callable[[], Any]) -> Callable[[], Any]:
    tracer = TracerProvider().get_tracer("floor")
    meter = MeterProvider([InMemoryMetricReader()]).get_meter("floor")
    duration, tokens = meter.create_histogram("duration", "s"), meter.create_histogram("tokens", "{token}")
    labels = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "gpt-4o-mini"}

    def measured() -> Any:
        began = time.perf_counter()
        with tracer.start_as_current_span("chat gpt-4o-mini") as span:
            result = call()
            span.set_attributes({f"gen_ai.attribute_{index}": "value" for index in range(15)})
        duration.record(time.perf_counter() - began, labels)
        tokens.record(result.usage.total_tokens, labels)
        return result

    return measured


@contextmanager
def instrumented(*, sdk: bool, limits: bool) -> Iterator[None]:
    providers: dict[str, Any] = {}
    if sdk:
        providers = {"tracer_provider": TracerProvider(), "meter_provider": MeterProvider([InMemoryMetricReader()])}
    with ravi_otel.instrument(**providers):
        if not limits:
            yield
            return
        budget = ravi_otel.ExecutionBudget(max_tokens=10**12, max_turns=10**9)
        caps = [ravi_otel.cost_limit(10**6), ravi_otel.request_limit(10**9)]
        with ravi_otel.run("bench", limits=caps), ravi_otel.agent("a", budget=budget):
            yield


@contextmanager
def bare() -> Iterator[None]:
    yield


def per_call_us(call: Callable[[], Any], calls: int) -> float:
    gc.collect()
    began = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - began) / calls * 1e6


def calls_table(rounds: int, calls: int) -> None:
    bot = client()

    def plain() -> Any:
        return bot.chat.completions.create(model="gpt-4o-mini", messages=MESSAGES)

    variants: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "bare client": (plain, bare),
        "hand-written floor": (floor(plain), bare),
        "ravi-otel, no SDK": (plain, lambda: instrumented(sdk=False, limits=False)),
        "ravi-otel, no SDK, 4 limits": (plain, lambda: instrumented(sdk=False, limits=True)),
        "ravi-otel, SDK": (plain, lambda: instrumented(sdk=True, limits=False)),
        "ravi-otel, SDK, 4 limits": (plain, lambda: instrumented(sdk=True, limits=True)),
    }
    took: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(rounds + 1):
        for name, (call, around) in variants.items():
            with around():
                call()
                figure = per_call_us(call, calls)
            if turn:  # the first round warms caches and the price table
                took[name].append(figure)
    base = statistics.median(took["bare client"])
    by_hand = statistics.median(took["hand-written floor"]) - base
    print(f"{'variant':32}{'µs a call':>12}{'added µs':>12}{'added / floor':>16}")
    for name, figures in took.items():
        median = statistics.median(figures)
        print(f"{name:32}{median:12.1f}{median - base:12.1f}{(median - base) / by_hand:16.2f}")


class LockedLoop:
    """Count over four scopes the way anybody would: one lock, four checks, four additions."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.used = [0] * 4
        self.held = [0] * 4
        self.limits = [10**12] * 4

    def once(self, want: int) -> None:
        with self.lock:
            for index in range(4):
                if self.used[index] + self.held[index] + want > self.limits[index]:
                    raise RuntimeError
            for index in range(4):
                self.held[index] += want
        with self.lock:
            for index in range(4):
                self.held[index] -= want
                self.used[index] += want


def ledger_table(rounds: int) -> None:
    loop, figures = LockedLoop(), {"bare locked loop": list[float](), "reserve + settle": list[float]()}
    caps = [ravi_otel.token_limit(10**12)]
    run = ravi_otel.run("r", limits=caps)
    with run, ravi_otel.apply_limits(caps), ravi_otel.apply_limits(caps), ravi_otel.agent("a", limits=caps):
        scope: Scope = ravi_otel.current_scope()
        lines = [Line(account, 1_000, 100) for account in scope.chain]
        ledger = STATE.engine.ledger

        def ours() -> None:
            op_id = new_op_id()
            run_sync(ledger.reserve(Reservation(op_id, lines, {})))
            run_sync(ledger.settle(op_id, {"tokens": 200}))

        for _ in range(rounds):
            figures["bare locked loop"].append(per_call_us(lambda: loop.once(1_000), 5_000))
            figures["reserve + settle"].append(per_call_us(ours, 5_000))
    base = statistics.median(figures["bare locked loop"])
    print(f"\n{'four scopes, one limited kind':32}{'µs':>12}{'ratio':>12}")
    for name, taken in figures.items():
        print(f"{name:32}{statistics.median(taken):12.2f}{statistics.median(taken) / base:12.2f}")


def main() -> None:
    options = argparse.ArgumentParser(description="Print what a call costs with us.")
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--calls", type=int, default=200)
    given = options.parse_args()
    print(f"openai {openai.__version__}, medians of {given.rounds} rounds of {given.calls} calls, CPU time\n")
    calls_table(given.rounds, given.calls)
    ledger_table(given.rounds)


if __name__ == "__main__":
    main()
