"""Measure other instrumentations of the client, each in an environment of its own, made outside the tree."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import openai

HERE = Path(__file__).parent
VERSIONS = {
    "opentelemetry-instrumentation-genai-openai": "1.3b0",
    "openinference-instrumentation-openai": "0.1.66",
    "pydantic-ai-slim": "2.68.0",
    "inspect-ai": "0.3.285",
}

PEERS = {
    "opentelemetry-instrumentation-genai-openai": "opentelemetry.instrumentation.genai.openai",
    "openinference-instrumentation-openai": "openinference.instrumentation.openai",
}


def cache() -> Path:
    """Give the directory of the environments, the user's cache directory unless the environment names another."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ravi-otel-benchmarks"


def _requirements(package: str) -> list[str]:
    extra = "[openai]" if package == "pydantic-ai-slim" else ""
    return [f"{package}{extra}=={VERSIONS[package]}", f"openai=={openai.__version__}", "opentelemetry-sdk"]


def python_of(package: str) -> Path | None:
    """Give the interpreter of a peer's environment, None when it was not made."""
    root = cache() / f"{package}-{VERSIONS[package]}-openai-{openai.__version__}"
    found = root / ("Scripts" if os.name == "nt" else "bin") / ("python.exe" if os.name == "nt" else "python")
    return found if (root / "ready").is_file() else None


def make(package: str) -> str | None:
    """Make a peer's environment with uv, or else with venv and pip; give why not, None when it is there."""
    if python_of(package) is not None:
        return None
    root = cache() / f"{package}-{VERSIONS[package]}-openai-{openai.__version__}"
    shutil.rmtree(root, ignore_errors=True)
    wanted, uv = _requirements(package), shutil.which("uv")
    inside = root / ("Scripts" if os.name == "nt" else "bin") / "python"
    early = package not in LIMITERS  # an instrumentation in beta asks for others in beta
    steps = (
        [
            [uv, "venv", "-q", "--python", sys.executable, str(root)],
            [uv, "pip", "install", "-q", *["--prerelease=allow"] * early, "--python", str(inside), *wanted],
        ]
        if uv
        else [[sys.executable, "-m", "venv", str(root)], [str(inside), "-m", "pip", "install", "-q", *["--pre"] * early, *wanted]]
    )
    for step in steps:
        ran = subprocess.run(step, check=False, capture_output=True, text=True)
        if ran.returncode:
            return (ran.stderr.strip().splitlines() or ["no reason was given"])[-1]
    (root / "ready").write_text("\n".join(wanted))
    return None


# -- libraries with limits of their own -----------------------------------------------------------------------------

LIMITERS = {"pydantic-ai-slim": "limits_of_pydantic_ai.py", "inspect-ai": "limits_of_inspect_ai.py"}


class Limiter:
    """Have work done under a library's own limits, in a process that lives as long as the `with` block."""

    def __init__(self, package: str, python: Path) -> None:
        self.package, self.version = package, VERSIONS[package]
        self._command = [str(python), str(HERE / LIMITERS[package])]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def ask(self, work: dict[str, Any]) -> dict[str, Any]:
        """Have one piece of work done; give what it tells."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("use it in a `with` block")
        stdin.write(json.dumps(work) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise RuntimeError(f"{self.package} ended in the middle of {work}")
        told: dict[str, Any] = json.loads(line)
        return told


def limiter(package: str) -> Limiter | str:
    """Give a library to ask, in an environment of its own that is made when there is none; a text says why there is nothing."""
    problem = make(package)
    python = python_of(package)
    return Limiter(package, python) if python is not None else str(problem)
