"""Bring one thing into the state that an alert is about: `python alert_faults.py MODEL_URL FAULT`, until the end of its input."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable

import openai

import ravi_otel
from ravi_otel import Priority, SpawnBudget
from ravi_otel.testing import Text

ENDED = threading.Event()
ANSWER = Text("a b c d", usage=(400, 60))


def ask(client: openai.OpenAI, model: str = "gpt-4o-mini") -> None:
    with contextlib.suppress(ravi_otel.RaviError):
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Say something."}])


def done() -> None:
    """Say that the fault is there, and stay with it."""
    print("there", flush=True)
    ENDED.wait()


def near(client: openai.OpenAI) -> None:
    with ravi_otel.run("near", limits=["requests=10"]):
        for _ in range(8):
            ask(client)
        done()


def exhausted(client: openai.OpenAI) -> None:
    with contextlib.suppress(ravi_otel.RaviError), ravi_otel.run("exhausted", limits=["requests=2"]):
        for _ in range(5):
            ask(client)
        done()


def short(client: openai.OpenAI) -> None:
    """Use up a budget and end, before anybody has read a gauge."""
    with contextlib.suppress(ravi_otel.RaviError), ravi_otel.run("short", limits=["requests=2"]):
        for _ in range(5):
            ask(client)
    done()


def rented(client: openai.OpenAI) -> None:
    with contextlib.suppress(ravi_otel.RaviError), ravi_otel.run("rented", tenant_id="acme", limits=["tenant.requests=2"]):
        for _ in range(5):
            ask(client)
        done()


def burning(client: openai.OpenAI) -> None:
    """Use a third of a day's budget at once, and more of it slowly: it is not near yet."""
    with ravi_otel.run("burning", tenant_id="acme", limits=["tenant.requests=1000:per=24h"]):
        print("there", flush=True)
        ask(client)
        ENDED.wait(4)  # a reading comes before it, or what is used at once is no increase
        for _ in range(350):
            ask(client)
            if ENDED.is_set():
                return
        while not ENDED.wait(0.5):
            ask(client)


def busy(client: openai.OpenAI) -> None:
    """Call again and again: what is told of it comes steadily, in small pieces."""
    with ravi_otel.run("busy"):
        ask(client)
        print("there", flush=True)
        while not ENDED.wait(0.2):
            ask(client)


def unpriced(client: openai.OpenAI) -> None:
    with ravi_otel.run("unpriced", limits=["cost=1"]):
        ask(client, "house-model")
        done()


def spawn(client: openai.OpenAI) -> None:
    with ravi_otel.run("team", spawn_budget=SpawnBudget(max_agents=1)), ravi_otel.agent("editor"):
        with contextlib.suppress(ravi_otel.RaviError), ravi_otel.agent("other"):
            pass
        done()


def paused(client: openai.OpenAI) -> None:
    opened = threading.Event()

    def read() -> None:
        with contextlib.suppress(ravi_otel.RaviError), ravi_otel.agent("reader", priority=Priority.LOW, when_paused="wait"):
            opened.set()
            ENDED.wait()

    with ravi_otel.run("team", spawn_budget=SpawnBudget(max_agents=2)), ravi_otel.agent("editor"):
        reader = threading.Thread(target=read)
        reader.start()
        opened.wait()
        with ravi_otel.agent("urgent", priority=Priority.CRITICAL):
            done()
        reader.join()


def calling(client: openai.OpenAI) -> None:
    """Only call, in a run with a limit: what goes wrong is around the program."""
    with contextlib.suppress(ravi_otel.RaviError), ravi_otel.run("calling", limits=["requests=1000"]):
        for _ in range(20):
            ask(client)
        done()


FAULTS: dict[str, Callable[[openai.OpenAI], None]] = {
    fault.__name__: fault for fault in (near, exhausted, short, rented, burning, busy, unpriced, spawn, paused, calling)
}


def main(url: str, fault: str) -> None:
    threading.Thread(target=lambda: (sys.stdin.read(), ENDED.set()), daemon=True).start()
    with ravi_otel.instrument(), openai.OpenAI(base_url=url, api_key="any", max_retries=0) as client:
        FAULTS[fault](client)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
