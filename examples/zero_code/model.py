"""Play the model, so that the programs beside this one can be tried without a key.

    python examples/zero_code/model.py                                           # serves until Ctrl-C
    python examples/zero_code/model.py python examples/zero_code/support_worker.py   # runs a command against it

The first form prints what to put into the environment of another terminal. The second puts it there itself, and ends
with the command and its exit status. Needs `pip install 'ravi-otel[testing]'`; nothing leaves this machine.
"""

import os
import shlex
import signal
import subprocess
import sys

from ravi_otel._cli.support_desk import answer
from ravi_otel.testing import ScriptedLLM


def main() -> int:
    command = sys.argv[1:]
    with ScriptedLLM(answer) as server:
        around = {
            "OPENAI_BASE_URL": server.base_url,
            "OPENAI_API_KEY": "any",
            "NO_PROXY": "127.0.0.1",  # a proxy named in the environment cannot reach this machine's own server
        }
        if not command:
            print(f"export {' '.join(f'{name}={shlex.quote(value)}' for name, value in around.items())}", flush=True)
            signal.sigwait({signal.SIGINT, signal.SIGTERM})
            print(f"{len(server.requests)} requests arrived.")
            return 0
        status = subprocess.call(command, env=os.environ | around)
        print(f"{len(server.requests)} requests arrived at the model.", file=sys.stderr)
        return status if status >= 0 else 128 - status


if __name__ == "__main__":
    if len(sys.argv) == 1:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})  # before the server has threads
    sys.exit(main())
