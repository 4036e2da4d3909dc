"""Have the programs of `scenes.py` work in a store while pictures of it are taken."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SCENES = ("support_desk", "nightly", "closure", "contacts", "faq")
REFUNDS = "refunds"


def environment(store: Path) -> dict[str, str]:
    """Return what has a program keep its runs in the store, with what was said, at the prices of the provider that the script plays."""
    known = {name: value for name, value in os.environ.items() if name != "RAVI_RAISE_BUGS"}
    ours = {"RAVI_STORE": str(store.absolute()), "RAVI_PROVIDERS": "127.0.0.1=openai"}
    return known | ours | {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true"}


@contextlib.contextmanager
def playing(store: Path, *names: str) -> Iterator[None]:
    """Have scenes played until the end of the block."""
    command = [sys.executable, str(Path(__file__).parent / "scenes.py")]
    with contextlib.ExitStack() as ends:
        for name in names:
            started = subprocess.Popen([*command, name], stdin=subprocess.PIPE, env=environment(store), cwd=store.absolute().parent)
            ends.callback(started.wait)
            ends.callback(started.stdin.close)
        yield
