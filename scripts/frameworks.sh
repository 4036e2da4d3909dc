#!/bin/sh
# Make .venv-frameworks with agent frameworks of different make, and run programs of each under the launcher.
set -eu

ROOT=$(cd "$(dirname "$0")/.." && pwd)
PYTHON=$ROOT/.venv-frameworks/bin/python

cd "$ROOT"
[ -x "$PYTHON" ] || .venv/bin/python -m venv .venv-frameworks
.venv/bin/uv pip install --quiet --python "$PYTHON" --editable ".[testing]" pytest pytest-timeout \
    --requirement tests/frameworks/requirements.txt
RAVI_TEST_FRAMEWORKS=1 "$PYTHON" -m pytest -q --override-ini addopts=--import-mode=importlib --confcutdir tests/frameworks tests/frameworks
