#!/bin/sh
# Run the tests on the newer Pythons, each with the newer Redis, that Debian has: 3.13 in trixie, 3.14 in sid. Each lives in a root folder
# of its own, made once and kept.
#
#   scripts/pythons.sh [trixie] [sid] [-- COMMAND...]     `make test` where no command is given
#
# DEBIAN_MIRROR names the mirror where apt's own sources name none of Debian; RAVI_PYTHONS the folder that keeps the roots.
set -eu

HERE=$(cd "$(dirname "$0")/.." && pwd)
ROOTS=${RAVI_PYTHONS:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/ravi-otel/pythons}
PACKAGES=python3,python3-venv,python3-dev,ca-certificates,make,git,redis-server,procps,gcc,tzdata
TREE=srv/ravi-otel

say() { echo "pythons: $*" >&2; }

fail() {
    say "$*"
    exit 1
}

mirror() {
    if [ -n "${DEBIAN_MIRROR:-}" ]; then
        echo "$DEBIAN_MIRROR"
        return
    fi
    # The first archive that is Debian's, and not the one of its security updates.
    # shellcheck disable=SC2016  # the words in parentheses are apt's
    apt-get indextargets --format '$(ORIGIN) $(REPO_URI)' 'Created-By: Packages' | awk '$1 == "Debian" && $2 !~ /security/ {print $2; exit}'
}

have_mmdebstrap() {
    command -v mmdebstrap >/dev/null 2>&1 && return
    say "installing mmdebstrap with apt-get"
    apt-get update -qq >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends mmdebstrap >/dev/null
}

# Make the root folder of a suite, unless it is there: whole or not at all.
make_root() {
    suite=$1
    [ -e "$ROOTS/$suite/.made" ] && return
    have_mmdebstrap || fail "mmdebstrap could not be installed."
    from=$(mirror)
    [ -n "$from" ] || { apt-get update -qq >/dev/null && from=$(mirror); }  # apt knows whose they are by what it has fetched
    [ -n "$from" ] || fail "apt's sources name no mirror of Debian that answers: name one with DEBIAN_MIRROR=…."
    say "making $ROOTS/$suite from $from"
    mkdir -p "$ROOTS"
    rm -rf "${ROOTS:?}/$suite" "$ROOTS/$suite.new"
    # A mirror that stands still at one day has an old date, and only sid's says until when it is good.
    mmdebstrap --quiet --variant=minbase --aptopt='Acquire::Check-Valid-Until "false"' --include="$PACKAGES" "$suite" "$ROOTS/$suite.new" "$from" ||
        fail "$suite could not be made from $from: see above why."
    touch "$ROOTS/$suite.new/.made"
    mv "$ROOTS/$suite.new" "$ROOTS/$suite"
}

# Give a root what this machine knows of the network: names, certificates, and where pip looks.
lend_network() {
    root=$1
    cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
    mkdir -p "$root/etc/ssl/certs" "$root/root/.config/pip"
    cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
    [ ! -f /etc/pip.conf ] || cp -L /etc/pip.conf "$root/etc/pip.conf"
    for mine in "${HOME:-/root}/.pip/pip.conf" "${HOME:-/root}/.config/pip/pip.conf"; do
        [ ! -f "$mine" ] || cp -L "$mine" "$root/root/.config/pip/pip.conf"
    done
}

# Copy the tree as git sees it, with what is not committed yet; its environment there stays, and what pytest knows of the last run.
copy_tree() {
    place=$1/$TREE
    mkdir -p "$place"
    find "$place" -mindepth 1 -maxdepth 1 ! -name .venv ! -name .git ! -name .pytest_cache -exec rm -rf {} +
    # shellcheck disable=SC2016  # the inner shell's variables; what is deleted and not committed yet is still listed
    (
        cd "$HERE"
        git ls-files -z --cached --others --exclude-standard |
            xargs -0 sh -c 'for file; do [ ! -e "$file" ] && [ ! -L "$file" ] || printf "%s\0" "$file"; done' sh |
            tar --create --null --files-from=- --file=-
    ) | tar --extract --file=- --directory="$place" --no-same-owner
    [ -d "$place/.git" ] || git init --quiet "$place"
}

# Run a command in a root. What is mounted goes with it: it is in a namespace of its own.
run_in() {
    root=$1
    shift
    # shellcheck disable=SC2016  # the inner shell's variables
    unshare --mount --propagation private sh -c '
        root=$1 && shift
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts "$root/dev/pts"
        mount --bind "$root/dev/pts/ptmx" "$root/dev/ptmx"
        mount -t tmpfs tmpfs "$root/tmp"
        exec chroot "$root" sh -c "cd /'"$TREE"' && exec \"\$@\"" sh "$@"
    ' sh "$root" "$@"
}

SUITES=
while [ $# -gt 0 ]; do
    case $1 in
    --)
        shift
        break
        ;;
    trixie | sid) SUITES="$SUITES $1" ;;
    *) fail "$1 is neither trixie (CPython 3.13) nor sid (3.14)." ;;
    esac
    shift
done
[ $# -gt 0 ] || set -- make test

[ "$(id -u)" -eq 0 ] || fail "a root folder can only be made and entered by root: run it as root, such as by sudo."
command -v apt-get >/dev/null 2>&1 || fail "this makes Debian's root folders with apt, which is not here."

failed=
for suite in ${SUITES:-trixie sid}; do
    make_root "$suite"
    root=$ROOTS/$suite
    lend_network "$root"
    copy_tree "$root"
    # shellcheck disable=SC2016  # the inner shell's
    say "$suite: $(chroot "$root" sh -c 'python3 --version; redis-server --version' | tr '\n' ' ')"
    run_in "$root" env -u TMPDIR HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin PYTHON=python3 "$@" || failed="$failed $suite"
done
[ -z "$failed" ] || fail "failed:$failed"
