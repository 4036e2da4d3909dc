"""The target of a launch: which Python a command runs, and whether that Python can import us."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ravi_otel._version import __version__
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks

_PYTHON: Final = re.compile(r"(python|pypy)(\d+(\.\d+)?)?[tdm]?")
_MOST_HEAD: Final = 1_024
_PATIENCE_S: Final = 60.0
_CHECK: Final = "import ravi_otel, sys; sys.stdout.write('ravi-otel ' + ravi_otel.__version__)"


class NotFoundError(ConfigurationError):
    """A command that does not exist, or cannot be executed; `status` is what a shell would exit with."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def find(command: str, environ: Mapping[str, str]) -> Path:
    """Return the file that `command` runs; raise NotFoundError when there is none."""
    found = shutil.which(command, path=environ.get("PATH", os.defpath))
    if found is not None:
        return Path(found).absolute()
    if os.sep in command and Path(command).is_file():
        raise NotFoundError(f"{checks.show(command)} is not executable. Write: ravi-otel run -- python {shlex.quote(command)}", 126)
    hint = f" Write: ravi-otel run -- python {shlex.quote(command)}" if Path(command).is_file() else ""
    raise NotFoundError(f"the command {checks.show(command)} was not found.{hint}", 127)


def interpreter(program: Path, environ: Mapping[str, str]) -> Path | None:
    """Return the Python that runs `program`: itself, or the one that its first lines name; None if that is unknown."""
    if _PYTHON.fullmatch(program.name):
        return program
    try:
        with program.open("rb") as file:
            head = file.read(_MOST_HEAD)
    except OSError:
        return None
    if not head.startswith(b"#!"):
        return None
    first, _, rest = head[2:].partition(b"\n")
    words = first.decode("utf-8", "replace").split()
    if words and Path(words[0]).name == "sh":  # installers write this when the path is too long for one line
        words = _exec_line(rest.decode("utf-8", "replace"))
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    if not words or not _PYTHON.fullmatch(Path(words[0]).name):
        return None
    found = shutil.which(words[0], path=environ.get("PATH", os.defpath))
    return None if found is None else Path(found).absolute()


def _exec_line(text: str) -> list[str]:
    line = text.partition("\n")[0].strip()
    if not line.startswith("'''exec'"):
        return []
    try:
        return shlex.split(line.removeprefix("'''exec'"))
    except ValueError:
        return []


def check(python: Path, environ: Mapping[str, str]) -> None:
    """Raise ConfigurationError unless `python` imports our version."""
    if python == Path(sys.executable).absolute() and environ.get("PYTHONPATH") == os.environ.get("PYTHONPATH"):
        return
    try:
        asked = subprocess.run(  # noqa: S603 - the interpreter of the command the user asked us to run
            [python, "-c", _CHECK], env=dict(environ), stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(
            f"{checks.show(str(python))} could not be asked for its ravi-otel: {error}. Nothing was started."
        ) from error
    answer = asked.stdout.decode("utf-8", "replace").rpartition("ravi-otel ")[2]
    if asked.returncode == 0 and answer == __version__:
        return
    has = f"has ravi-otel {answer[:40]}, not {__version__}" if asked.returncode == 0 else f"cannot import ravi-otel {__version__}"
    why = _last_line(asked.stderr)
    raise ConfigurationError(
        f"{checks.show(str(python))} {has}{f' ({why})' if why and asked.returncode else ''}. Nothing was started. "
        f"Install it there: {shlex.quote(str(python))} -m pip install ravi-otel=={__version__}"
    )


def _last_line(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return checks.show(lines[-1])[:200] if lines else ""


def describe(command: Sequence[str]) -> str:
    """Return the name of a program, after its command: the script, the module, or the command itself."""
    words = list(command)
    if _PYTHON.fullmatch(Path(words[0]).name):
        words = words[1:]
        while words and words[0].startswith("-") and words[0] not in ("-m", "-c", "-"):
            words = words[2:] if words[0] in ("-X", "-W", "--check-hash-based-pycs") else words[1:]
        if words[:1] == ["-m"] and len(words) > 1:
            return words[1]
        if not words or words[0] in ("-c", "-"):
            return "python"
    return Path(words[0]).name or words[0]
