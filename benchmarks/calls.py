"""Measure calls, streams, embeddings and gathered calls in this process, and print the medians in µs as JSON.

`python calls.py [--peer PACKAGE] [--rounds N]`. `table.py` runs it in each environment: with us, and with one peer.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import openai
from around import BARE, FLOOR, Floor, bare, our_variants, peer
from client import Gathered, chat, embedding, prepared_stream, stream, sync_client
from rounds import Variant, in_turns, medians

TEXTS = 4_000
"""Chunks of text in the long stream; the cost of a chunk is what they add to a stream without them."""

Arounds = dict[str, Callable[[], Any]]


def _table(plain: Callable[[], Any], by_hand: Callable[[], Any] | None, arounds: Arounds) -> dict[str, Variant]:
    variants = {BARE: Variant(plain, bare)}
    if by_hand is not None:
        variants[FLOOR] = Variant(by_hand, bare)
    return variants | {name: Variant(plain, around) for name, around in arounds.items()}


def _chunks(arounds: Arounds, rounds: int) -> dict[str, float]:
    """Give the cost of one chunk of text, without what its stream costs anyway."""
    read = stream(sync_client())
    took: dict[int, dict[str, float]] = {}
    for texts in (0, TEXTS):
        with prepared_stream(texts):
            took[texts] = medians(in_turns(_table(read, None, arounds), rounds, 1), BARE)
    return {name: (took[TEXTS][name] - took[0][name]) / TEXTS for name in took[0]}


def measure(arounds: Arounds, rounds: int, pieces: int) -> dict[str, dict[str, float]]:
    """Give µs by kind of work and by variant."""
    bot, floor, gathered = sync_client(), Floor(), Gathered()
    many = _table(gathered.work(gathered.once), gathered.work(floor.tasks(gathered.once)), arounds)
    figures = {
        "call": medians(in_turns(_table(chat(bot), floor.sync(chat(bot)), arounds), rounds, pieces), BARE),
        "embedding": medians(in_turns(_table(embedding(bot), floor.sync(embedding(bot)), arounds), rounds, pieces), BARE),
        "gathered": medians(in_turns(many, rounds, 1), BARE),
        "chunk": _chunks(arounds, rounds),
    }
    figures["gathered"] = {name: figure / Gathered.CALLS for name, figure in figures["gathered"].items()}
    return figures


def main() -> None:
    """Measure, and print JSON."""
    options = argparse.ArgumentParser(description="Measure calls in this process and print JSON.")
    options.add_argument("--peer")
    options.add_argument("--rounds", type=int, default=60)
    options.add_argument("--calls", type=int, default=25)
    given = options.parse_args()
    logging.disable(logging.CRITICAL)
    arounds: Arounds = our_variants() if given.peer is None else {given.peer: partial(peer, given.peer)}
    print(json.dumps({"openai": openai.__version__, "us": measure(arounds, given.rounds, given.calls)}))


if __name__ == "__main__":
    main()
