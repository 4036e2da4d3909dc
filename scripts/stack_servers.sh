#!/bin/sh
# See that the stack's servers are there as plain programs, of the versions in collector/.env: found on PATH, or built here.
#
#   stack_servers.sh [build [server ...]]    builds what is missing, and says how long it took
#   stack_servers.sh paths [server ...]      prints a program and its path a line, and builds nothing
#
# What is built goes to ${RAVI_SERVERS:-${XDG_CACHE_HOME:-~/.cache}/ravi-otel/servers}, is moved there whole, and is kept.
# Source comes from the Go module proxy alone; Go too, where PATH has none that is new enough.
set -eu

ROOT=$(cd "$(dirname "$0")/.." && pwd)
PLACE=${RAVI_SERVERS:-${XDG_CACHE_HOME:-$HOME/.cache}/ravi-otel/servers}
MANIFEST=$ROOT/collector/builder.yaml
GO_VERSION=1.26.8
PYTHON=$ROOT/.venv/bin/python
[ -x "$PYTHON" ] || PYTHON=python3

# The programs of each server; the first one's path says whether it is there.
SERVERS="collector prometheus alertmanager jaeger loki"

fail() {
    echo "stack servers: $*" >&2
    exit 1
}

# What checks the compose files, when it is asked for by name: the loader that every compose is built on.
COMPOSE_BUILT=2.16.2

# The number in a server's line of collector/.env, without v.
version_of() {
    [ "$1" != compose ] || { echo "$COMPOSE_BUILT" && return; }
    name=$(echo "$1" | tr '[:lower:]' '[:upper:]')
    found=$(sed -n "s/^${name}_TAG=v\{0,1\}\([0-9][0-9.]*\)\$/\1/p" "$ROOT/collector/.env")
    [ -n "$found" ] || fail "collector/.env has no line ${name}_TAG=<version>; it says which $1 to build."
    echo "$found"
}

programs_of() {
    case $1 in
    collector) echo otelcol-contrib ;;
    prometheus) echo prometheus promtool ;;
    alertmanager) echo alertmanager amtool ;;
    compose) echo compose-spec ;;
    *) echo "$1" ;;
    esac
}

# Jaeger's module has no path with /v2: of what the proxy has, its last tag is the newest, and is Jaeger 2.13.0.
JAEGER_MODULE=v1.76.0
JAEGER_BUILT=2.13.0

# The version that is built here, where no program on PATH is the one of collector/.env.
built_version_of() {
    if [ "$1" = jaeger ]; then echo "$JAEGER_BUILT"; else version_of "$1"; fi
}

# The collector is built of a list of components: another list, another collector.
home_of() {
    home=$PLACE/$1-$(built_version_of "$1")
    [ "$1" != collector ] || home=$home-$(cksum <"$MANIFEST" | cut -d ' ' -f 1)
    echo "$home"
}

says_version() {
    dotted=$(echo "$2" | sed 's/\./[.]/g')
    { "$1" --version || "$1" version; } 2>/dev/null </dev/null | grep -Eq "(^|[^0-9.])v?$dotted([^0-9.]|\$)"
}

# Print "program path" for each program of a server, or fail.
find_server() {
    wanted=$(version_of "$1") home=$(home_of "$1") found=""
    for program in $(programs_of "$1"); do
        if [ -x "$home/$program" ]; then
            path=$home/$program
        else
            path=$(command -v "$program") && says_version "$path" "$wanted" || return 1
        fi
        found="$found$program $path
"
    done
    printf %s "$found"
}

# A Go that is new enough: PATH's, else the one that the module proxy has for every Go to fetch.
find_go() {
    if go=$(command -v go); then
        has=$(GOTOOLCHAIN=local go env GOVERSION | sed 's/^go\([0-9.]*\).*/\1/')
        newest=$(printf '%s\n%s\n' "$has" "$GO_VERSION" | sort -t . -k 1,1n -k 2,2n -k 3,3n | tail -n 1)
        [ "$newest" != "$has" ] || return 0
        echo "stack servers: $go is Go $has, and they need $GO_VERSION" >&2
    fi
    "$PYTHON" "$ROOT/scripts/fetch_go.py" "$GO_VERSION" "$PLACE/go-$GO_VERSION" ||
        fail "They are built with Go >= $GO_VERSION, and there is none. Install it from https://go.dev/dl and put it on PATH, or put the servers there."
    PATH=$PLACE/go-$GO_VERSION/bin:$PATH
}

# Make a directory with a module's source that we may write to, and print it.
source_of() {
    from=$(go mod download -json "$1" | sed -n 's/^[[:space:]]*"Dir": "\(.*\)",*$/\1/p')
    [ -n "$from" ] || fail "The Go module proxy has no $1; GOPROXY is $(go env GOPROXY)."
    cp -R "$from" "$2"
    chmod -R u+w "$2"
}

compile() {
    # Nothing here is debugged, and linking is half the time of small changes.
    go build -p 2 -trimpath -ldflags "-s -w $1" -o "$BUILT/" $2
}

build_collector() {
    GOBIN=$SCRATCH go install -p 2 "go.opentelemetry.io/collector/cmd/builder@v$1"
    "$SCRATCH/builder" --config "$MANIFEST" --ldflags "-s -w" --skip-strict-versioning --output-path "$SCRATCH/collector"
    mv "$SCRATCH/collector/otelcol-contrib" "$BUILT/"
}

build_prometheus() {
    source_of "github.com/prometheus/prometheus@$(echo "$1" | awk -F . '{ printf "v0.%d%02d.%d", $1, $2, $3 }')" "$SCRATCH/prometheus"
    cd "$SCRATCH/prometheus"
    # We name our targets: the dozens of ways to discover them in clouds are most of the build.
    compile "-X github.com/prometheus/common/version.Version=$1" "-tags=remove_all_sd ./cmd/prometheus ./cmd/promtool"
}

build_alertmanager() {
    source_of "github.com/prometheus/alertmanager@v$1" "$SCRATCH/alertmanager"
    cd "$SCRATCH/alertmanager"
    # Its page is made with npm, and is no part of the module; nobody looks at it here.
    [ -d ui/app/dist ] || { mkdir -p ui/app/dist && echo "Built without its page." >ui/app/dist/index.html; }
    compile "-X github.com/prometheus/common/version.Version=$1" "./cmd/alertmanager ./cmd/amtool"
}

build_jaeger() {
    source_of "github.com/jaegertracing/jaeger@$JAEGER_MODULE" "$SCRATCH/jaeger"
    cd "$SCRATCH/jaeger"
    compile "-X github.com/jaegertracing/jaeger/internal/version.latestVersion=v$1" ./cmd/jaeger
}

build_compose() {
    source_of "github.com/compose-spec/compose-go/v2@v$1" "$SCRATCH/compose"
    cd "$SCRATCH/compose"
    mv cmd compose-spec
    compile "" ./compose-spec
}

build_loki() {
    source_of "github.com/grafana/loki/v3@v$1" "$SCRATCH/loki"
    cd "$SCRATCH/loki"
    # Its own tree's part of it is a module of its own, which the archive of a module does not hold.
    push=$(sed -n 's#^[[:space:]]*github.com/grafana/loki/pkg/push \(v[^ ]*\).*#\1#p' go.mod)
    go mod edit -replace "github.com/grafana/loki/pkg/push=github.com/grafana/loki/pkg/push@$push"
    GOFLAGS=-mod=mod compile "-X github.com/grafana/loki/v3/pkg/util/build.Version=$1" ./cmd/loki
}

build_server() {
    SCRATCH=$(mktemp -d "$PLACE/.building.XXXXXX")
    BUILT=$SCRATCH/built
    mkdir "$BUILT"
    trap 'chmod -R u+w "$SCRATCH" 2>/dev/null; rm -rf "$SCRATCH"' EXIT
    trap 'exit 130' INT TERM HUP
    began=$(date +%s)
    echo "stack servers: building $1 $(built_version_of "$1"); the first time it takes minutes" >&2
    # What go and the builder say is wanted only of a build that failed. (In a condition, set -e would mean nothing.)
    set +e
    (
        set -e
        "build_$1" "$(built_version_of "$1")"
    ) >"$SCRATCH/log" 2>&1
    status=$?
    set -e
    if [ "$status" -ne 0 ]; then
        grep -v "^go: downloading" "$SCRATCH/log" | tail -n 40 >&2
        fail "$1 could not be built: see above."
    fi
    for program in $(programs_of "$1"); do
        [ -x "$BUILT/$program" ] || fail "the build of $1 left no program $program."
    done
    rm -rf "$(home_of "$1")"
    mv "$BUILT" "$(home_of "$1")"
    times >"$SCRATCH/times"
    echo "stack servers: built $1 $(built_version_of "$1") in $(($(date +%s) - began)) s; CPU (user, system): $(tail -n 1 "$SCRATCH/times")" >&2
}

# Two at once: the second waits, and finds what the first one made. The lock goes with the last process that holds it.
build_missing() {
    mkdir -p "$PLACE"
    exec 9>"$PLACE/.lock"
    "$PYTHON" -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)'
    export CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS="" GOWORK=off
    find_go
    for server in $SERVERS; do
        find_server "$server" >/dev/null || (build_server "$server")
    done
}

all_there() {
    for server in $SERVERS; do
        find_server "$server" || return 1
    done
}

[ -f "$ROOT/collector/.env" ] && [ -f "$MANIFEST" ] || fail "collector/.env or collector/builder.yaml is not there."
wish=${1:-build}
[ $# -eq 0 ] || shift
[ $# -eq 0 ] || SERVERS=$*
for server in $SERVERS; do version_of "$server" >/dev/null; done
case $wish in
paths) all_there || fail "not all of them are there; build them with: make servers" ;;
build)
    all_there >/dev/null || build_missing
    ;;
*) fail "say build or paths, not \"$wish\"." ;;
esac
