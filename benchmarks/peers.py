"""Measure other instrumentations of the client, each in an environment of its own, made outside the tree."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import openai

HERE = Path(__file__).parent
VERSIONS = {
    "opentelemetry-instrumentation-genai-openai": "1.3b0",
    "openinference-instrumentation-openai": "0.1.66",
}


def cache() -> Path:
    """Give the directory of the environments, the user's cache directory unless the environment names another."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ravi-otel-benchmarks"


def _requirements(package: str) -> list[str]:
    return [f"{package}=={VERSIONS[package]}", f"openai=={openai.__version__}", "opentelemetry-sdk"]


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
    steps = (
        [
            [uv, "venv", "-q", "--python", sys.executable, str(root)],
            [uv, "pip", "install", "-q", "--prerelease=allow", "--python", str(inside), *wanted],
        ]
        if uv
        else [[sys.executable, "-m", "venv", str(root)], [str(inside), "-m", "pip", "install", "-q", "--pre", *wanted]]
    )
    for step in steps:
        ran = subprocess.run(step, check=False, capture_output=True, text=True)
        if ran.returncode:
            return (ran.stderr.strip().splitlines() or ["no reason was given"])[-1]
    (root / "ready").write_text("\n".join(wanted))
    return None


def measure(package: str, rounds: int, calls: int) -> dict[str, Any] | str:
    """Give what `calls.py` printed in the peer's environment, or why there is nothing."""
    python = python_of(package)
    if python is None:
        return "not installed"
    command = [str(python), str(HERE / "calls.py"), "--peer", package, "--rounds", str(rounds), "--calls", str(calls)]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    if ran.returncode:
        return f"failed: {(ran.stderr.strip().splitlines() or ['without a word'])[-1]}"
    printed: dict[str, Any] = json.loads(ran.stdout)
    return printed
