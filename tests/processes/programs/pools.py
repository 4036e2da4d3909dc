"""Work in processes of a pool, started as told, and tell who did what: pools.py METHOD TIMES."""

import json
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor

import ravi_otel

ravi_otel.instrument(limits=["tool_calls=5"])  # here, so that a spawned process has them too


@ravi_otel.tool
def work():
    return os.getpid()


def attempt(_):
    try:
        return work(), "did"
    except ravi_otel.BudgetExhaustedError:
        return os.getpid(), "refused"


if __name__ == "__main__":
    method, times = sys.argv[1], int(sys.argv[2])
    with (
        ravi_otel.run("of the parent", limits=["tool_calls=1"]),
        ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool,
    ):
        own = attempt(None)  # and the run has no more to give
        print(json.dumps([own, *pool.map(attempt, range(times))]))
