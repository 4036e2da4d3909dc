#!/bin/sh
# See that there is a Chromium, from the system's packages: dashboards and the page of `ravi-otel ui` are drawn in it.
set -eu

has_browser() {
    command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1
}

install_browser() {
    [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1 || return 1
    echo "installing chromium with apt-get" >&2
    apt-get update -qq >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null
}

has_browser || install_browser || {
    echo "There is no Chromium. Install it (on Debian: apt install chromium) and run this again." >&2
    exit 1
}
