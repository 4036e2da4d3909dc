#!/bin/sh
# Make .venv from nothing but Python >= 3.11: the environment, a pinned uv, and what uv.lock names. `make` calls this.
set -eu

UV_VERSION=0.13.8
ROOT=${1:-$(cd "$(dirname "$0")/.." && pwd)}
VENV=$ROOT/.venv

cd "$ROOT"
# Settings of another environment the caller may be in.
unset VIRTUAL_ENV CONDA_PREFIX PYTHONHOME PYTHONPATH PIP_REQUIRE_VIRTUALENV PIP_USER PIP_TARGET PIP_PREFIX UV_PYTHON

say() { echo "setup: $*" >&2; }

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

makes_environments() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

# Give the first Python that will do; fail with one sentence when there is none.
find_python() {
    seen=
    for python in ${PYTHON:-} python3.13 python3.12 python3.11 python3.14 python3 python; do
        command -v "$python" >/dev/null 2>&1 && is_new_enough "$python" || continue
        if makes_environments "$python"; then
            command -v "$python"
            return
        fi
        seen=${seen:-$python}
    done
    if [ -n "$seen" ]; then
        version=$("$seen" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        say "$seen has no venv or ensurepip module: install it (on Debian and Ubuntu: apt install python$version-venv) and run make again."
    else
        say "no Python 3.11 or newer was found: install one (https://www.python.org/downloads/) or name it with make PYTHON=/path/to/python3."
    fi
    return 1
}

# Tell whether .venv can be kept: made here, with a Python that still runs.
is_usable() { [ "$(cat "$VENV/.made" 2>/dev/null)" = "$ROOT" ] && is_new_enough "$VENV/bin/python" && "$VENV/bin/python" -m pip --version >/dev/null 2>&1; }

# A home that cannot be written (or none) has no place for uv's cache.
cache=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}
if [ -z "${UV_CACHE_DIR:-}" ] && ! { mkdir -p "$cache/uv" && [ -w "$cache/uv" ]; } 2>/dev/null; then
    export UV_CACHE_DIR="$VENV/.uv-cache"
fi

rm -f "$VENV/.ready"
if ! is_usable; then
    python=$(find_python)
    say "creating .venv with $python"
    rm -rf "$VENV"
    "$python" -m venv "$VENV"
    echo "$ROOT" >"$VENV/.made"
fi

if [ "$("$VENV/bin/uv" --version 2>/dev/null | cut -d ' ' -f 2)" != "$UV_VERSION" ]; then
    say "installing uv $UV_VERSION"
    if ! "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "uv==$UV_VERSION"; then
        say "pip could not install uv $UV_VERSION: check the network, or pip's index settings, and run make again."
        exit 1
    fi
fi

say "installing what uv.lock names"
export UV_PROJECT_ENVIRONMENT="$VENV" UV_PYTHON_DOWNLOADS=never
if ! "$VENV/bin/uv" sync --quiet --frozen --all-extras --group dev --python "$VENV/bin/python"; then
    # The same versions and hashes, by pip: it knows this machine's index, proxy and certificates where uv may not.
    say "uv could not; trying with pip"
    "$VENV/bin/uv" export --quiet --frozen --all-extras --group dev --no-emit-project --output-file "$VENV/requirements.txt"
    if ! "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --requirement "$VENV/requirements.txt" ||
        ! "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --no-deps --editable "$ROOT"; then
        say "neither uv nor pip could install what uv.lock names: check the network, or the index settings, and run make again."
        exit 1
    fi
fi

echo "$ROOT" >"$VENV/.ready"
say "ready"
