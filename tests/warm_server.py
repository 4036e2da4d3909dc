"""Be a Python that has imported the client and all of us, and fork for each program that a test starts: see `warm_starts`."""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib.util
import json
import os
import re
import select
import socket
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import openai
import opentelemetry.sdk.metrics
import opentelemetry.sdk.trace  # noqa: F401 - imported for those that are forked

import ravi_otel._cli.entry
import ravi_otel._local.live.client
import ravi_otel.testing  # noqa: F401 - as above

assert openai.OpenAI(api_key="any").chat.completions  # the client imports what it has as it is asked for it


def serve(listener: socket.socket) -> dict[str, Any]:
    """Fork for each who asks, and say how it ended; give in the child what it is to do. Ends when whoever started us is gone."""
    children: dict[int, tuple[int, socket.socket]] = {}
    while True:
        ready, _, _ = select.select([0, listener, *children], [], [])
        if 0 in ready:
            os._exit(0)
        for ended in [each for each in ready if each in children]:
            child, wire = children.pop(ended)
            os.close(ended)
            _say(wire, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            wire.close()
        if listener in ready:
            wire, _ = listener.accept()
            job, descriptors = _asked(wire)
            child = os.fork()
            if not child:
                for each in (*(wire.fileno() for _, wire in children.values()), *children, wire.detach(), listener.detach()):
                    os.close(each)
                for number, descriptor in enumerate(descriptors):
                    os.dup2(descriptor, number)
                    os.close(descriptor)
                return job
            children[os.pidfd_open(child)] = child, wire
            _say(wire, child)
            for descriptor in descriptors:
                os.close(descriptor)


def _asked(wire: socket.socket) -> tuple[dict[str, Any], list[int]]:
    text, descriptors, _, _ = socket.recv_fds(wire, 1 << 20, 3)
    while not text.endswith(b"\n"):
        text += wire.recv(1 << 20)
    return json.loads(text), descriptors


def _say(wire: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # who asked waits no more
        wire.sendall(f"{number}\n".encode())


def become(job: dict[str, Any]) -> types.ModuleType:
    """Have the environment, the place, the streams, the path and the main module of a Python that was started so."""
    if job["session"]:
        os.setsid()
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"])
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "utf-8").partition(":")
    for name, number, mode, usual in (("stdin", 0, "r", "strict"), ("stdout", 1, "w", "strict"), ("stderr", 2, "w", "backslashreplace")):
        stream = open(number, mode, encoding=encoding, errors=usual if name == "stderr" else errors or usual, closefd=False)  # noqa: SIM115 - as Python has them
        stream.reconfigure(line_buffering=name == "stderr" or stream.isatty())
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    for option in [*filter(None, os.environ.get("PYTHONWARNINGS", "").split(",")), *job["warnings"]]:
        action, message, category, *_ = *option.split(":"), "", ""
        warnings.filterwarnings(action, re.escape(message), getattr(builtins, category or "Warning"))
        sys.warnoptions.append(option)
    sys.argv = [job["target"] if job["kind"] == "file" else f"-{job['kind'][0]}", *job["args"]]
    first = {"file": str(Path(job["target"]).absolute().parent), "module": job["cwd"], "code": ""}[job["kind"]]
    sys.path[:] = [first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *job["path"]]
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    return main


def code_of(job: dict[str, Any], main: types.ModuleType) -> types.CodeType:
    """Compile what is to be run."""
    if job["kind"] == "code":
        return compile(job["target"], "<string>", "exec", dont_inherit=True)
    if job["kind"] == "file":
        main.__file__ = job["target"]
        with open(job["target"], "rb") as file:  # noqa: PTH123 - a path as it was written
            return compile(file.read(), job["target"], "exec", dont_inherit=True)
    spec = importlib.util.find_spec(f"{job['target']}.__main__") or importlib.util.find_spec(job["target"])
    assert spec is not None
    assert spec.loader is not None
    main.__spec__, main.__file__, main.__package__ = spec, spec.origin, spec.parent
    sys.argv[0] = str(spec.origin)
    code: types.CodeType = spec.loader.get_code(spec.name)  # type: ignore[attr-defined]  # of a module in a file
    return code


def main() -> None:
    """Serve; in a child, run what was asked for as Python does, a traceback of its own for what it raises included."""
    path = sys.path[1:]  # the first is where this file is
    listener = socket.socket(fileno=int(sys.argv[1]))
    gc.collect()
    gc.freeze()
    job = serve(listener) | {"path": path}
    program = become(job)
    try:
        exec(code_of(job, program), program.__dict__)
    except Exception as error:
        own = error.__traceback__
        mine = error.with_traceback(None if own is None else own.tb_next)  # without our own line
        sys.excepthook(type(mine), mine, mine.__traceback__)
        sys.exit(1)


if __name__ == "__main__":
    main()
