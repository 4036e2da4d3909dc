#!/bin/sh
# Make .venv-coexistence with other instrumentations of the client, and run the tests that stand beside them.
set -eu

ROOT=$(cd "$(dirname "$0")/.." && pwd)
PYTHON=$ROOT/.venv-coexistence/bin/python

cd "$ROOT"
[ -x "$PYTHON" ] || .venv/bin/python -m venv .venv-coexistence
.venv/bin/uv pip install --quiet --python "$PYTHON" --editable ".[testing]" openai==3.52.0 anyio pytest pytest-timeout \
    --requirement tests/coexistence/requirements.txt
RAVI_COEXISTENCE=1 "$PYTHON" -m pytest -q --override-ini addopts=--import-mode=importlib --confcutdir tests/coexistence tests/coexistence
