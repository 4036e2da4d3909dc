"""Measure variants of one piece of work against each other: they take turns, in CPU time."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

_WARM = 3


@dataclass(frozen=True)
class Variant:
    """Say what runs, and what is put around it while it runs."""

    work: Callable[[], object]
    around: Callable[[], AbstractContextManager[object]]


def per_piece_us(work: Callable[[], object], pieces: int) -> float:
    """Give the CPU time of one piece in µs; garbage that others left is collected beforehand."""
    gc.collect()
    began = time.process_time()
    for _ in range(pieces):
        work()
    return (time.process_time() - began) / pieces * 1e6


def in_turns(variants: Mapping[str, Variant], rounds: int, pieces: int) -> dict[str, list[float]]:
    """Run all variants once a round, each time beginning with another one; the first round warms up and is left out.

    What is there before, modules above all, is set aside, so that no variant pays for collecting it.
    """
    took: dict[str, list[float]] = {name: [] for name in variants}
    names = list(variants)
    gc.collect()
    gc.freeze()
    try:
        for turn in range(rounds + 1):
            shift = turn % len(names)
            for name in names[shift:] + names[:shift]:
                variant = variants[name]
                with variant.around():
                    for _ in range(_WARM):
                        variant.work()
                    figure = per_piece_us(variant.work, pieces)
                if turn:
                    took[name].append(figure)
    finally:
        gc.unfreeze()
    return took
