#!/bin/sh
# Make .venv-mcp with the official MCP SDK in the versions before 2, and run the tests of tools over MCP, and of the store served over it, with each; 2.x is in .venv.
# The fastmcp package, which stands on 2.x, has an environment inside of that one.
set -eu

ROOT=$(cd "$(dirname "$0")/.." && pwd)
PYTHON=$ROOT/.venv-mcp/bin/python
FAST=$ROOT/.venv-mcp/fastmcp
TESTS="pytest pytest-timeout pytest-xdist"

run_tests() {  # the Python to run them with, the folder whose conftest.py is theirs, and what of it
    "$1" -m pytest -q -n 2 --override-ini addopts=--import-mode=importlib --confcutdir "$2" "$3"
}

cd "$ROOT"
[ -x "$PYTHON" ] || .venv/bin/python -m venv .venv-mcp
for VERSION in 1.27.0 1.30.0; do
    # shellcheck disable=SC2086
    .venv/bin/uv pip install --quiet --python "$PYTHON" --editable ".[testing]" "mcp==$VERSION" anyio trio $TESTS
    echo "mcp $VERSION"
    run_tests "$PYTHON" tests/mcp tests/mcp
    PYTHONPATH=tests run_tests "$PYTHON" tests/cli tests/cli/test_mcp.py
done
[ -x "$FAST/bin/python" ] || .venv/bin/python -m venv "$FAST"
# shellcheck disable=SC2086
.venv/bin/uv pip install --quiet --python "$FAST/bin/python" --upgrade-package fastmcp --editable ".[testing]" fastmcp $TESTS
echo fastmcp
run_tests "$FAST/bin/python" tests/mcp tests/mcp/test_fastmcp.py
