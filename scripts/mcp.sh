#!/bin/sh
# Make .venv-mcp with the official MCP SDK in the versions before 2, and run the tests of tools over MCP, and of the store served over it, with each; 2.x is in .venv.
set -eu

ROOT=$(cd "$(dirname "$0")/.." && pwd)
PYTHON=$ROOT/.venv-mcp/bin/python

cd "$ROOT"
[ -x "$PYTHON" ] || .venv/bin/python -m venv .venv-mcp
for VERSION in 1.27.0 1.30.0; do
    .venv/bin/uv pip install --quiet --python "$PYTHON" --editable ".[testing]" "mcp==$VERSION" anyio trio pytest pytest-timeout pytest-xdist
    echo "mcp $VERSION"
    "$PYTHON" -m pytest -q -n 2 --override-ini addopts=--import-mode=importlib --confcutdir tests/mcp tests/mcp
    PYTHONPATH=tests "$PYTHON" -m pytest -q -n 2 --override-ini addopts=--import-mode=importlib --confcutdir tests/cli tests/cli/test_mcp.py
done
