#!/bin/sh
# See that there is what `make boards` draws with: Chromium from the system's packages, and a page of Grafana's own npm packages.
set -eu

ROOT=$(cd "$(dirname "$0")/.." && pwd)
SOURCE=$ROOT/tests/stack/boards
PLACE=${XDG_CACHE_HOME:-$HOME/.cache}/ravi-otel/boards

fail() {
    echo "boards: $*" >&2
    exit 1
}

sh "$ROOT/scripts/browser.sh"
command -v npm >/dev/null 2>&1 || fail "there is no npm. Install Node.js 20 or newer and run make boards again."

# The page is built again where its source or its packages are others.
stamp=$(cat "$SOURCE"/package.json "$SOURCE"/package-lock.json "$SOURCE"/*.js "$SOURCE"/*.jsx | cksum)
[ "$(cat "$PLACE/.built" 2>/dev/null)" = "$stamp" ] && [ -f "$PLACE/board.js" ] && exit 0

mkdir -p "$PLACE/source"
cp "$SOURCE"/.npmrc "$SOURCE"/package.json "$SOURCE"/package-lock.json "$SOURCE"/*.js "$SOURCE"/*.jsx "$PLACE/source/"
cd "$PLACE/source"
echo "boards: fetching Grafana's packages and building the page" >&2
npm ci --silent --no-audit --no-fund || fail "npm could not install what tests/stack/boards/package-lock.json names."
npm run --silent build -- --outfile="$PLACE/board.js"
rm -rf "$PLACE/source"
echo "$stamp" >"$PLACE/.built"
