"""Start the three services, each a process of its own, and a scripted model; ask a question, and show who used what.

python examples/three_services/run_all.py                                # loans
python examples/three_services/run_all.py redis://127.0.0.1:6379/0       # one ledger for all
"""

import os
import secrets
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import httpx

from ravi_otel.testing import ScriptedLLM, Text

HERE = Path(__file__).parent
CHAIN = (("desk", 1, 900, 2), ("research", 1, 400, 1), ("library", 100, 0, 0))
"""Each service with how often it asks the model, what it lends, and how many it asks at once; the last one never has enough."""


def say(_request):
    """Be the model."""
    return Text("It says so in the books.", usage=(10, 40))


def free_ports(count):
    """Find ports that nobody listens on."""
    with ExitStack() as stack:
        return [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(count)]


def start(stack, server, ledger=None):
    """Start all services, and give their URLs, the desk's first."""
    ports = free_ports(len(CHAIN))
    shared = os.environ | {
        "OPENAI_BASE_URL": server.base_url,
        "OPENAI_API_KEY": "any",
        "RAVI_CARRY_KEYS": f"k1:{secrets.token_hex(16)}",
        "RAVI_CARRY_TO": ",".join(f"127.0.0.1:{port}" for port in ports),
        **({"RAVI_LEDGER": ledger} if ledger else {}),
        **{name: value for name, value in os.environ.items() if name.startswith("RAVI_CARRY_")},
    }
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    for place, (name, asks, lends, at_once) in enumerate(CHAIN):
        environment = shared | {
            "SERVICE": name,
            "OTEL_SERVICE_NAME": name,
            "ASKS": str(asks),
            "LEND": "0" if ledger else str(lends),
            "AT_ONCE": str(at_once),
        }
        if place + 1 < len(CHAIN):
            environment["BEHIND"] = urls[place + 1]
        command = [sys.executable, "-m", "uvicorn", "service:app", "--app-dir", HERE, "--port", str(ports[place]), "--log-level", "warning"]
        stack.callback(stop, subprocess.Popen(command, env=environment))
    for port in ports:
        wait_for(port)
    return urls


def wait_for(port, within_s=60):
    """Wait until somebody listens there."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise TimeoutError(f"nobody listens on port {port}")


def stop(process):
    """End a service as a server is ended."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def show(told, depth=0):
    """Print what one service says, and those behind it."""
    name, ended = "  " * depth + told["service"], told["stopped"] or "done"
    print(f"{name:14} {len(told['notes']):3} answers {told['tokens']:6} tokens in its run   {ended}")
    for behind in told["behind"]:
        show(behind, depth + 1)


def main(ledger=None):
    """Ask one question."""
    with ExitStack() as stack:
        server = stack.enter_context(ScriptedLLM(say))
        desk, *_ = start(stack, server, ledger)
        show(httpx.post(desk, json={"question": "Who wrote it?"}, timeout=60).json())
        print(f"the model was asked {len(server.requests)} times")


if __name__ == "__main__":
    main(*sys.argv[1:2])
