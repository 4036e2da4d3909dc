#!/bin/sh
# Take the pictures of the docs: `sh scripts/pictures.sh page terminal incident dashboards`, or some of them.
set -eu

ROOT=$(cd "$(dirname "$0")/.." && pwd)
PY=$ROOT/.venv/bin/python
cd "$ROOT"
export PYTHONPATH="$ROOT/benchmarks:$ROOT/tests"

for kind in "$@"; do
    case $kind in
    page)
        sh scripts/browser.sh
        sh scripts/ui.sh --check
        "$PY" tests/ui/pictured/page_pictures.py
        ;;
    terminal) "$PY" tests/ui/pictured/terminal_pictures.py ;;
    incident)
        sh scripts/servers.sh
        sh scripts/stack_servers.sh
        "$PY" tests/stack/live/incident_pictures.py
        ;;
    dashboards)
        sh scripts/servers.sh
        sh scripts/stack_servers.sh
        sh scripts/boards.sh
        "$PY" -m pytest -q -n 0 --timeout 1200 tests/stack/boards -k first_screen
        ;;
    *)
        echo "pictures: there are no pictures of $kind; there are page, terminal, incident and dashboards." >&2
        exit 2
        ;;
    esac
done
