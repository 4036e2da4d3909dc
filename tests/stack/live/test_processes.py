"""The live tests' own servers: what is done to one is really done, and a run that is killed leaves none behind."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from stack_process import Guard, wait_for
from stack_servers import Stack, running_stack, started
from webhook import Webhook

KILLED = """
import sys
sys.path[:0] = sys.argv[1:]
from stack_servers import running_stack
with running_stack(only=("prometheus",)) as stack:
    print(stack.server("prometheus").pid, stack.server("prometheus").directory, flush=True)
    sys.stdin.read()
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_run_that_is_killed_leaves_no_server(tmp_path: Path):
    places = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, *places], env=os.environ | {"TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as run:  # fmt: skip
        assert run.stdout is not None
        pid = int(run.stdout.readline().split()[0])
        assert alive(pid)
        run.kill()
    wait_for(lambda: not alive(pid), f"the end of Prometheus, process {pid}")


def test_a_paused_server_answers_nobody_until_it_goes_on():
    with running_stack(only=("prometheus",)) as own:
        prometheus = own.server("prometheus")
        with prometheus.paused(), pytest.raises(httpx.ReadTimeout):
            httpx.get(prometheus.ready_url, timeout=0.5, trust_env=False)
        assert own.value("vector(1)") == 1


def test_a_server_that_was_killed_comes_back_where_it_was_with_what_it_had():
    with running_stack(only=("prometheus",)) as own:
        prometheus = own.server("prometheus")
        up = 'up{job="prometheus"}'
        assert wait_for(lambda: own.value(up), up) == 1
        with prometheus.down(), pytest.raises(httpx.ConnectError):
            own.query(up)
        assert own.series(up)


def test_nothing_of_a_stack_is_left_at_its_end():
    with running_stack(only=("prometheus",)) as own:
        pid, directory = own.server("prometheus").pid, own.server("prometheus").directory
    assert not alive(pid)
    assert not directory.exists()


def test_a_port_that_another_program_took_meanwhile_is_left_to_it(tmp_path: Path):
    with contextlib.ExitStack() as after:
        guard, webhook = Guard(), Webhook()
        after.callback(guard.close)
        after.callback(webhook.close)

        def make(attempt: int) -> Stack:
            made = Stack(tmp_path / str(attempt), (), ("prometheus",), guard, webhook, {})
            if attempt == 0:
                after.enter_context(socket.create_server(("127.0.0.1", made.configs.port("prometheus", 9090))))
            return made

        own = started(make)
        after.callback(own.stop)
        assert own.value("vector(1)") == 1
