"""What passes while the disk of a ledger's file is full is charged when it is not any more, or told as not charged."""

import contextlib
import os
import re
import subprocess
import sys

import pytest
import warm_starts

PROGRAM = """
import contextlib, logging, os, resource, sys
import openai, ravi_otel
from ravi_otel.testing import ScriptedLLM, Text

path, disk, end = sys.argv[1:]
logging.basicConfig(level=logging.WARNING, format="%(message)s")
ravi_otel.instrument(ledger=f"sqlite:{path}")

@ravi_otel.tool
def work():
    return None

def fill():
    if disk == "small":
        with contextlib.suppress(OSError), open(f"{path}.fill", "wb", buffering=0) as file:
            while True:
                file.write(bytes(512))
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, resource.RLIM_INFINITY))

def free():
    if disk == "small":
        os.unlink(f"{path}.fill")
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

def go(calls):
    limits = ["tenant.tool_calls=20:store=open", "tenant.tokens=1000:store=open", "tenant.cost=1usd:store=open"]
    with ravi_otel.run("r", tenant_id="acme", limits=limits) as run:
        for _ in range(calls):
            work()
            client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "x"}])
        readings = {str(one.limit.kind): one for one in run.scope.parent.readings()}
    tokens = readings["tokens"]
    print(readings["tool_calls"].used, tokens.used, tokens.held, readings["cost"].held)

with ScriptedLLM(lambda request: Text("ok", usage={"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10})) as server:
    client = openai.OpenAI(base_url=server.base_url, api_key="k", max_retries=0)
    go(3)
    fill()
    go(5)
    if end == "mended":
        free()
        go(1)
        go(1)
"""

SMALL = ("-t", "tmpfs", "-o", "size=4m", "tmpfs")
DISKS = pytest.mark.parametrize("disk", ["small", "bounded"])


@pytest.fixture
def place(tmp_path, disk):
    """Give the path of a ledger on a disk that can be filled: a small one, or one on which files may only get so long."""
    folder = tmp_path / "small"
    folder.mkdir()
    if disk == "small" and (os.geteuid() or subprocess.run(["mount", *SMALL, folder], capture_output=True, check=False).returncode):
        pytest.skip("a small disk can be mounted by root alone")
    yield folder / "ledger.db"
    if disk == "small":
        with contextlib.suppress(OSError):
            subprocess.run(["umount", "--lazy", folder], check=False)


def ran(*args):
    done = warm_starts.run([sys.executable, "-c", PROGRAM, *map(str, args)])
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1], done.stderr


@DISKS
def test_what_passed_meanwhile_is_charged_once_when_there_is_room_again(place, disk):
    said, log = ran(place, disk, "mended")
    assert [said[0], said[-1]] == ["3 30 0 0.0", "10 100 0 0.0"]
    assert "not all counted" not in log


@DISKS
def test_a_process_that_ends_meanwhile_says_what_is_not_charged(place, disk):
    said, log = ran(place, disk, "full")
    assert said[0] == "3 30 0 0.0"
    told = [line for line in log.splitlines() if "not all counted" in line]
    assert len(told) == 1, log
    for lacks in ("5 tool_calls of tenant 'acme'", "50 tokens of tenant 'acme'", r"[\d.e-]+ cost of tenant 'acme'"):
        assert re.search(lacks, told[0]), told
