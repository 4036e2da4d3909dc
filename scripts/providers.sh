#!/bin/sh
# Make .venv-providers with the libraries of other providers, and hold the real ones to limits against a scripted model.
# NEWEST=1 does so with the newest release of each, in .venv-newest. What urllib3 2 is held to by the other tests, urllib3 1.26 is here.
set -eu

ROOT=$(cd "$(dirname "$0")/.." && pwd)
ENVIRONMENT=$ROOT/.venv-$([ -n "${NEWEST:-}" ] && echo newest || echo providers)
PYTHON=$ENVIRONMENT/bin/python

cd "$ROOT"
[ -x "$PYTHON" ] || .venv/bin/python -m venv "$ENVIRONMENT"
if [ -n "${NEWEST:-}" ]; then
    # shellcheck disable=SC2046  # the names are words
    set -- --upgrade $(sed -e '/^#/d' -e 's/==.*//' tests/providers/requirements.txt)
else
    set -- --requirement tests/providers/requirements.txt
fi
.venv/bin/uv pip install --quiet --python "$PYTHON" --editable ".[testing]" pytest pytest-timeout "$@"
# What the libraries warn of is theirs: some leave their connections to the collector of garbage.
RAVI_TEST_PROVIDERS=1 "$PYTHON" -m pytest -q --override-ini addopts=--import-mode=importlib --override-ini filterwarnings=ignore --confcutdir tests/providers tests/providers
.venv/bin/uv pip install --quiet --python "$PYTHON" --target "$ENVIRONMENT/urllib3-1" --no-deps "urllib3<2"
PYTHONPATH=$ENVIRONMENT/urllib3-1 .venv/bin/python -m pytest -q -n 2 tests/instrumentation/http_seam -k "urllib3 or requests"
