"""Run at the start of every Python process of a program under `ravi-otel run`, before the program itself.

Python imports the first `sitecustomize` on its path, and that is this one; the one it shadows runs right after. It is
no part of the package: it imports nothing of it until the program imports the client, because most processes of a
program never do, and are not to pay for it. It says that this process is attached when our package is there in the
version the launcher has, and waits for `openai`.
"""
# mypy: ignore-errors
# pyright: basic

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import time

_CLIENT = "openai"


class _Waiting(importlib.abc.MetaPathFinder):
    """Stand first in line of the finders until the client is imported, and begin right after it is."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname != _CLIENT:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loading(spec.loader)
        return spec


class _Loading(importlib.abc.Loader):
    """Load the client with its own loader, then begin."""

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        try:
            importlib.import_module("ravi_otel.launch.attach").begin()
        except Exception as error:  # the program's import must succeed whatever is wrong with us
            _say("failed", repr(error))


def _version():
    """Read the version of our package that this interpreter would import, without importing it."""
    spec = importlib.util.find_spec("ravi_otel")
    for place in (spec and spec.submodule_search_locations) or ():
        names = {}
        try:
            with open(os.path.join(place, "_version.py"), encoding="utf-8") as file:
                exec(file.read(), names)
        except OSError:
            continue
        return names.get("__version__")
    return None


def _tell_launcher():
    """Say on the inherited descriptor that this process is attached; the number may be another file's by now, so look twice."""
    number, _, inode = os.environ.pop("RAVI_LAUNCH_FD", "").partition(":")
    try:
        descriptor = int(number)
        if os.fstat(descriptor).st_ino == int(inode):
            os.write(descriptor, b"attached %d\n" % os.getpid())
            os.close(descriptor)
    except (OSError, ValueError):
        pass


def _say(what, why=""):
    """Leave a note for the launcher, and a line on standard error when something is wrong."""
    if why:
        sys.stderr.write("ravi-otel: process %d is not observed and its limits are not in force: %s\n" % (os.getpid(), why))
    note = {"what": what, "pid": os.getpid(), "at_ns": time.monotonic_ns(), "text": why[:2000]}
    path = os.path.join(json.loads(os.environ["RAVI_LAUNCH"])["directory"], "notes.jsonl")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    try:
        os.write(descriptor, (json.dumps(note) + "\n").encode("ascii"))
    finally:
        os.close(descriptor)


def _attach():
    wanted, found = json.loads(os.environ["RAVI_LAUNCH"])["version"], _version()
    if found != wanted:
        has = "no ravi-otel" if found is None else "ravi-otel " + found
        _say("failed", "%s has %s, the launcher is %s" % (sys.executable, has, wanted))
        return
    sys.meta_path.insert(0, _Waiting())
    _tell_launcher()
    _say("attached")


def _run_shadowed(here):
    """Run the `sitecustomize` that would have been imported without us."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None and os.path.dirname(os.path.abspath(spec.origin or "")) != here:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != _here]
if os.environ.get("RAVI_LAUNCH"):
    try:
        _attach()
    except Exception as error:
        sys.stderr.write("ravi-otel: this process is not observed and its limits are not in force: %r\n" % (error,))
_run_shadowed(_here)
