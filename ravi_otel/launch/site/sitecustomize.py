"""Run at the start of every Python process of a program under `ravi-otel run`, before the program itself.

Python imports the first `sitecustomize` on its path, and that is this one; the one it shadows runs right after. It is
no part of the package, and imports nothing that Python has not imported already: what it imported, a module of the
same name beside the program's script could no longer be. It says that this process is attached, and waits for the
program to import a client, or us, because most processes of a program never do.
"""
# mypy: ignore-errors
# pyright: basic

import _frozen_importlib as _machinery
import _frozen_importlib_external as _files
import atexit
import os
import sys
import time

_AWAITED = ("openai", "anthropic", "groq", "ravi_otel")
"""The clients, and us: a program may have limited tools and agents without any client of ours."""


class _Waiting:
    """Stand first in line of the finders, and begin whenever what is awaited was imported; it may be asked for and never be."""

    def __init__(self, begin):
        self._begin = begin

    def find_spec(self, fullname, path=None, target=None):
        if fullname not in _AWAITED:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loading(spec.loader, self._begin)
                return spec
        return None


class _Loading:
    """Load a package with its own loader, then begin."""

    def __init__(self, loader, begin):
        self._loader = loader
        self._begin = begin

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._begin()


def _version():
    """Read the version of our package that this interpreter would import, without importing it."""
    spec = _files.PathFinder.find_spec("ravi_otel")
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


def _say(notes, what, why="", unkept=False):
    """Leave a note for the launcher, and a line on standard error when something is wrong."""
    if why and sys.stderr is not None:
        sys.stderr.write("ravi-otel: process %d is not observed and its limits are not in force: %s\n" % (os.getpid(), why))
    text = "".join(sign if sign.isalnum() and sign.isascii() else "\\u%04x" % min(ord(sign), 0xFFFF) for sign in why[:400])
    form = '{"what": "%s", "pid": %d, "at_ns": %d, "text": "%s", "unkept": %s}\n'
    note = form % (what, os.getpid(), time.monotonic_ns(), text, "true" if unkept else "false")
    try:
        descriptor = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    try:
        os.write(descriptor, note.encode("ascii"))
    finally:
        os.close(descriptor)


def _watch_end(notes):
    """Say that a refusal ended a process that called no model itself: a worker's, raised again here."""

    def end():
        errors = sys.modules.get("ravi_otel.errors")
        error = getattr(sys, "last_value", None)
        if errors is None or "ravi_otel.launch.attach" in sys.modules:
            return
        links = 64
        while error is not None and links:
            if isinstance(error, errors.BudgetError):
                _say(notes, "uncaught", unkept=error.reason in ("store_failed", "store_lost"))
                return
            error, links = error.__cause__ or error.__context__, links - 1

    atexit.register(end)


def _attach(plan, wanted, notes):
    def begin():
        found = _version()
        try:
            if found == wanted:
                __import__("ravi_otel.launch.attach")
                sys.modules["ravi_otel.launch.attach"].begin(plan)
                return
            why = "%s has %s, the launcher is %s" % (sys.executable, "ravi-otel " + found if found else "no ravi-otel", wanted)
        except Exception as error:  # the program's import must succeed whatever is wrong with us
            why = "ravi-otel could not be started in it (%s: %s)." % (type(error).__name__, error)
        _say(notes, "failed", why)

    sys.meta_path.insert(0, _Waiting(begin))
    _watch_end(notes)
    _tell_launcher()
    _say(notes, "attached")
    if any(name in sys.modules for name in _AWAITED):  # a `.pth` file was earlier
        begin()


def _run_shadowed(here):
    """Run the `sitecustomize` that would have been imported without us."""
    spec = _files.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None and os.path.dirname(os.path.abspath(spec.origin or "")) != here:
        module = _machinery.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != _here]
if os.environ.get("RAVI_LAUNCH"):
    _wanted, _, _notes = os.environ.get("RAVI_LAUNCH_SITE", "").partition(":")
    try:
        _attach(os.environ["RAVI_LAUNCH"], _wanted, _notes)
    except Exception as error:
        if sys.stderr is not None:
            sys.stderr.write(
                "ravi-otel: this process is not observed and its limits are not in force: it could not be started in it (%s: %s).\n"
                % (type(error).__name__, error)
            )
_run_shadowed(_here)
