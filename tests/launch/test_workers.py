"""The workers of one program share one budget, and a worker that dies leaves nothing held."""

import os
import socket
import threading

import pytest
from launched import stored

LONG = [("spawn", 8, 3), ("forkserver", 8, 3)] if os.environ.get("RAVI_LONG") else []


@pytest.mark.parametrize(("start", "number", "may"), [("fork", 8, 5), ("spawn", 2, 1), *LONG])
def test_workers_send_together_what_one_limit_allows_and_are_told_of_it_once(desk, start, number, may):
    done = desk.launch(*desk.program("workers", start, str(number)), flags=["--limit", f"requests={may}"], timeout=120)
    assert done.out.split() == ["BudgetExhaustedError"] * (number - may) + ["sent"] * may, done.err
    assert desk.sent == may
    (budget,) = done.run["budgets"]
    assert (budget["used"], budget["held"], budget["denied"]) == (may, 0, number - may)
    if may == 5:
        told = ("ravi-otel: 80 % of the requests", "is reached: 5 of 5 used, nothing more is sent")
        assert [done.err.count(each) for each in told] == [1, 1], done.err


@pytest.mark.parametrize("start", ["fork", *(["spawn"] if os.environ.get("RAVI_LONG") else [])])
def test_the_calls_of_every_worker_are_in_the_store(desk, start):
    done = desk.launch(*desk.program("workers", start, "8"), timeout=120)
    assert done.out.split() == ["sent"] * 8, done.err
    assert "8 chat" in done.report or done.report.count("chat gpt-4o-mini") >= 1
    assert stored(done.store, "SELECT model, count(*) FROM calls GROUP BY model") == [("gpt-4o-mini", 8)]


def test_a_worker_that_is_killed_in_a_call_leaves_nothing_held_after_its_lease(desk, tmp_path):
    arrived = tmp_path / "arrived"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        port = silent.getsockname()[1]

        def listen():
            wire, _ = silent.accept()
            with wire:
                wire.recv(1)
                arrived.touch()
                wire.settimeout(60)
                while wire.recv(4096):  # until the worker is dead
                    pass

        thread = threading.Thread(target=listen)
        thread.start()
        done = desk.launch(
            *desk.program("killed", str(arrived), f"http://127.0.0.1:{port}"), flags=["--limit", "tokens=80"], RAVI_LEASE_S="1"
        )
        thread.join()
    assert done.out == "BudgetExhaustedError\n", done.err  # it waited for the lease, and what was held was spent then
    (budget,) = done.run["budgets"]
    assert budget["held"] == 0
    assert 60 < budget["used"] <= 80
