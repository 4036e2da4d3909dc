"""Do pieces of work in turns with others: `table.py` asks, a line of JSON at a time, and is answered with the CPU time of one piece.

    python contender.py [--peer PACKAGE]

It lives in a process of its own, so that another tree of ours and other instrumentations, each in its environment, can take turns with
us in one series. `{"work": "chat", "variant": "limited", "calls": 100}` is answered with `{"us": 312.5}`, or with `{"problem": …}` where
that work or variant is not to be had here. Of ours, only public names are used; `reservations.py` is the exception, and says why.

What is around the work is its variant: *bare* is the client alone, *floor* what anybody would write by hand (a span with 15 attributes
and two histogram records), *limited* ours with an SDK, four limits on a run and one on an agent, *unseen* the same without an SDK, and
*peer* another instrumentation.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import logging
import statistics
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import copy_context
from pathlib import Path
from typing import Any

from client import Gathered, chat, embedding, prepared_stream, response, stream, sync_client, take_parameters_as_they_are
from opentelemetry import context as otel_context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind, set_span_in_context
from peers import PEERS

_WARM = 60
_FOUR = ("tokens=1000M", "cost=100000usd", "requests=1000M", "turns=1000M")

Work = Callable[[], object]


# -- what is around it --------------------------------------------------------------------------------------------


class Floor:
    """Write one span with 15 attributes and two histogram records around a call."""

    def __init__(self) -> None:
        self._tracer = TracerProvider().get_tracer("floor")
        meter = MeterProvider([InMemoryMetricReader()]).get_meter("floor")
        self._duration = meter.create_histogram("gen_ai.client.operation.duration", "s")
        self._tokens = meter.create_histogram("gen_ai.client.token.usage", "{token}")

    def sync(self, call: Callable[[], Any]) -> Callable[[], Any]:
        """Give the call with the floor around it."""

        def measured() -> Any:
            began = time.perf_counter()
            with self._tracer.start_as_current_span("chat gpt-4o-mini", kind=SpanKind.CLIENT) as span:
                result = call()
                span.set_attributes(_attributes(result))
            self._record(time.perf_counter() - began, result)
            return result

        return measured

    def tasks(self, call: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
        """Give the coroutine function with the floor around it."""

        async def measured() -> Any:
            began = time.perf_counter()
            with self._tracer.start_as_current_span("chat gpt-4o-mini", kind=SpanKind.CLIENT) as span:
                result = await call()
                span.set_attributes(_attributes(result))
            self._record(time.perf_counter() - began, result)
            return result

        return measured

    def _record(self, took: float, result: Any) -> None:
        labels = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "gpt-4o-mini"}
        self._duration.record(took, labels)
        self._tokens.record(result.usage.total_tokens, labels)


def _attributes(result: Any) -> dict[str, Any]:
    told = getattr(result.usage, "prompt_tokens", 9)  # a response calls them something else
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-4o-mini",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 256,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.model": result.model,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": told,
        "gen_ai.usage.output_tokens": result.usage.total_tokens - told,
        "server.address": "model.invalid",
        "server.port": 80,
        "session.id": "session",
        "app.feature": "bench",
    }


class Same:
    """Tell by hand what we tell of a chat call, under an agent's span: attributes at its span's start and end, and three records."""

    def __init__(self) -> None:
        self._tracer = TracerProvider().get_tracer("same")
        meter = MeterProvider([InMemoryMetricReader()]).get_meter("same")
        self._duration = meter.create_histogram("gen_ai.client.operation.duration", "s")
        self._tokens = meter.create_histogram("gen_ai.client.token.usage", "{token}")

    def around(self) -> Any:
        """Give the agent's span."""
        return self._tracer.start_as_current_span("invoke_agent writer")

    def sync(self, call: Callable[[], Any]) -> Callable[[], Any]:
        """Give the call with it around."""
        asked = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "gpt-4o-mini"}
        asked |= {"server.address": "model.invalid", "server.port": 80}
        run = {"openai.api.type": "chat_completions", "ravi.run.id": "0" * 32, "gen_ai.agent.name": "writer", "ravi.agent.id": "writer"}
        named = {**asked, "gen_ai.response.model": "gpt-4o-mini-2024-07-18"}
        sent, told = ({**named, "gen_ai.token.type": kind} for kind in ("input", "output"))

        def measured() -> Any:
            began, parent = time.perf_counter(), otel_context.get_current()
            span = self._tracer.start_span("chat gpt-4o-mini", parent, SpanKind.CLIENT, {**asked, **run})
            inside = set_span_in_context(span, parent)
            token = otel_context.attach(inside)
            try:
                result = call()
            finally:
                otel_context.detach(token)
            tokens = result.usage
            span.set_attributes(
                {
                    "gen_ai.response.id": result.id,
                    "gen_ai.response.model": result.model,
                    "gen_ai.response.finish_reasons": (result.choices[0].finish_reason,),
                    "gen_ai.usage.input_tokens": tokens.prompt_tokens,
                    "gen_ai.usage.output_tokens": tokens.completion_tokens,
                    "ravi.usage.cost_usd": 3.15e-6,
                    "gen_ai.usage.cost.amount": 3.15e-6,
                    "gen_ai.usage.cost.currency": "USD",
                    "gen_ai.usage.cost.source": "local",
                    "ravi.usage.cost.source": "bundled",
                    "ravi.limit.decision": "admitted",
                }
            )
            span.end()
            self._duration.record(time.perf_counter() - began, named, inside)
            self._tokens.record(tokens.prompt_tokens, sent, inside)
            self._tokens.record(tokens.completion_tokens, told, inside)
            return result

        return measured


def _sdk() -> dict[str, Any]:
    return {"tracer_provider": TracerProvider(), "meter_provider": MeterProvider([InMemoryMetricReader()])}


@contextmanager
def ours(**given: Any) -> Iterator[None]:
    """Instrument with us, in a run with four limits and an agent with one."""
    ravi: Any = importlib.import_module("ravi_otel")
    with ravi.instrument(**given), ravi.run("bench", limits=_FOUR), ravi.agent("writer", limits=["tokens=1000M"]):
        yield


@contextmanager
def peer(package: str) -> Iterator[None]:
    """Instrument with another package; it must be installed here."""
    instrumentor: Any = importlib.import_module(PEERS[package]).OpenAIInstrumentor()
    instrumentor.instrument(**_sdk())
    try:
        yield
    finally:
        instrumentor.uninstrument()


# -- the work -----------------------------------------------------------------------------------------------------


class Contender:
    """Have the clients and the floor at hand, and stage what is asked."""

    def __init__(self, package: str | None) -> None:
        self._package, self._bot, self._floor, self._gathered = package, sync_client(), Floor(), Gathered()
        self._same = Same()
        self._calls = {"chat": chat, "responses": response, "embeddings": embedding, "stream": stream, "long": stream}

    def per_piece_us(self, work: str, variant: str, calls: int, texts: int | None = None, warm: int = _WARM) -> float:
        """Return the CPU time of one piece in µs; what is there before, modules above all, is not collected on its account.

        `texts` is how many chunks of text a stream has.
        """
        with self._stage(work, variant, texts) as piece:
            for _ in range(min(3, warm) if work in ("gathered", "long") else warm):
                piece()
            gc.collect()
            gc.freeze()
            try:
                began = time.process_time_ns()
                for _ in range(calls):
                    piece()
                took = time.process_time_ns() - began
            finally:
                gc.unfreeze()
        return took / max(calls, 1) / 1e3 / (Gathered.CALLS if work == "gathered" else 1)

    @contextmanager
    def _stage(self, work: str, variant: str, texts: int | None) -> Iterator[Work]:
        if work in ("charge", "ledger"):
            with _scopes(work, variant) as piece:
                yield piece
            return
        by_hand = variant == "floor"
        if work == "gathered":
            once = self._gathered.once
            piece = self._gathered.work(self._floor.tasks(once) if by_hand else once)
        else:
            call = self._calls[work](self._bot)
            piece = self._floor.sync(call) if by_hand else self._same.sync(call) if variant == "same" else call
        with nullcontext() if texts is None else prepared_stream(texts), self._around(variant):
            yield piece

    def _around(self, variant: str) -> Any:
        match variant:
            case "bare" | "floor":
                return nullcontext()
            case "same":
                return self._same.around()
            case "limited":
                return ours(**_sdk())
            case "unseen":
                return ours()
            case "peer" if self._package is not None:
                return peer(self._package)
            case _:
                raise ValueError(f"there is no variant {variant!r} here")

    def agents(self, count: int) -> dict[str, float]:
        """Have so many agents of one run come one after the other, beside one that stays; give the median µs of early and late ones.

        Each makes one call, and what the bare call takes in the same minute is taken out.
        """
        ravi: Any = importlib.import_module("ravi_otel")
        call, took = chat(self._bot), list[int]()
        bare = statistics.median(self.per_piece_us("chat", "bare", 50) for _ in range(9))
        with ravi.instrument(**_sdk()), ravi.run("crowd", spawn_budget=ravi.SpawnBudget(3)), ravi.agent("root"):
            tracker = ravi.SpawnTracker.current()
            with tracker.acquire("stays", ravi.Priority.LOW):
                for number in range(count):
                    began = time.process_time_ns()
                    with ravi.agent(f"agent {number}"):
                        call()
                    took.append(time.process_time_ns() - began)
        some = max(1, min(1_000, count // 10))
        early, late = statistics.median(took[some : 2 * some]), statistics.median(took[-some:])
        return {"early": early / 1e3 - bare, "late": late / 1e3 - bare}

    def memory(self, calls: int) -> dict[str, float]:
        """Make many calls; give the KiB and live objects that were gained after the first fifth of them."""
        call, seen = chat(self._bot), list[tuple[int, int]]()
        with ours(**_sdk()):
            for done in range(1, calls + 1):
                call()
                if done in (calls // 5, calls):
                    gc.collect()
                    pages = int(Path("/proc/self/statm").read_text().split()[1]) if sys.platform == "linux" else 0
                    seen.append((pages * 4, len(gc.get_objects())))
        (kib, objects), (kib_later, objects_later) = seen
        return {"kib": kib_later - kib, "objects": objects_later - objects}


class LockedLoop:
    """Count over four scopes the way anybody would: one lock, four checks, four additions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used, self._held, self._limits = [0] * 4, [0] * 4, [10**12] * 4

    def once(self, want: int = 1_000, used: int = 200) -> None:
        """Hold `want` everywhere or nowhere, then replace it by what was used."""
        with self._lock:
            for index in range(4):
                if self._used[index] + self._held[index] + want > self._limits[index]:
                    raise RuntimeError
            for index in range(4):
                self._held[index] += want
        with self._lock:
            for index in range(4):
                self._held[index] -= want
                self._used[index] += used


@contextmanager
def _scopes(work: str, variant: str) -> Iterator[Work]:
    """Stage a charge, or the ledger's part of one, on four scopes; `among 10000` has so many other runs open beside them."""
    if variant == "loop":
        yield LockedLoop().once
        return
    ravi: Any = importlib.import_module("ravi_otel")
    logging.getLogger("ravi_otel").setLevel(logging.ERROR)  # nothing is instrumented here, and that is meant
    word, _, among = variant.partition(" ")
    cap = ["charge.units=1000000M" if work == "charge" else "tokens=1000000M"]
    with ExitStack() as open_now:
        for number in range(int(among or 0)):
            other = ravi.run(f"other {number}", limits=cap)
            apart = copy_context()
            apart.run(other.__enter__)
            open_now.callback(apart.run, other.__exit__, None, None, None)
        for scope in (ravi.run("r", limits=cap), ravi.apply_limits(cap), ravi.apply_limits(cap), ravi.agent("a", limits=cap)):
            open_now.enter_context(scope)
        if work == "ledger":
            yield importlib.import_module("reservations").reserve_and_settle()
        else:
            charge, kind = ravi.current_scope().charge, "units" if word == "four" else "others"
            yield lambda: charge(kind, 3)


def main() -> None:
    """Answer until nobody asks any more."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--peer", choices=PEERS)
    package = options.parse_args().peer
    logging.disable(logging.CRITICAL)
    take_parameters_as_they_are()
    contender = Contender(package)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if "agents" in asked:
                told: dict[str, Any] = contender.agents(asked["agents"])
            else:
                told = contender.memory(asked["memory"]) if "memory" in asked else {"us": contender.per_piece_us(**asked)}
        except Exception as error:  # noqa: BLE001 - the row says so, and the others are measured all the same
            told = {"problem": f"{type(error).__name__}: {error}"}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
