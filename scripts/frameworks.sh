#!/bin/sh
# Make .venv-frameworks and .venv-crewai with agent frameworks of different make, and run programs of each under the launcher.
set -eu

ROOT=$(cd "$(dirname "$0")/.." && pwd)
cd "$ROOT"

run() { # an environment, what goes into it, and which tests
    python=$ROOT/$1/bin/python
    [ -x "$python" ] || .venv/bin/python -m venv "$1"
    .venv/bin/uv pip install --quiet --python "$python" --editable ".[testing]" pytest pytest-timeout --requirement "tests/frameworks/$2"
    shift 2
    # LiteLLM keeps its async clients when their loop has ended, and leaves their connections to the collector of garbage.
    RAVI_TEST_FRAMEWORKS=1 "$python" -m pytest -q -W ignore::pytest.PytestUnraisableExceptionWarning --override-ini addopts=--import-mode=importlib \
        --confcutdir tests/frameworks "$@"
}

run .venv-frameworks requirements.txt tests/frameworks
run .venv-crewai requirements-openai-2.txt tests/frameworks/test_frameworks.py tests/frameworks/test_hostile_names.py
