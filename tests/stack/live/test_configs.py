"""What the live tests run is what is shipped: only addresses, folders and waiting times differ."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from stack_configs import COLLECTOR, INTERVALS, PORT_KEYS, leaves, seconds
from stack_servers import Stack

SERVERS_AND_FILES = [
    ("collector", "/etc/otelcol/", "otelcol"),
    ("prometheus", "/etc/prometheus/prometheus.yaml", "prometheus/prometheus.yaml"),
    ("prometheus", "/etc/prometheus/rules/", "prometheus/rules"),
    ("alertmanager", "/etc/alertmanager/", "alertmanager"),
    ("jaeger", "/etc/jaeger/", "jaeger"),
    ("loki", "/etc/loki/loki.yaml", "loki/loki.yaml"),
]
SHIPPED_ADDRESS = re.compile(r"(?<=://)[a-z0-9.-]+:\d{2,5}|(?<![\w:/])/[\w.*{}/-]+|(?<![\w:/.])[a-z0-9.-]*:\d{2,5}|0\.0\.0\.0")
OURS = r"(?:127\.0\.0\.1(?::\d+)?|/\S*ravi-stack-\S*)"


def allowed(key: str | int, before: Any, after: Any) -> bool:
    """Say whether a shipped value may have become this one, in words of its own."""
    if key in PORT_KEYS:
        return isinstance(before, int) and isinstance(after, int)
    if key in INTERVALS and seconds(before) is not None:
        return seconds(after) == seconds(INTERVALS[str(key)]) < seconds(before)
    frame = [re.escape(part) for part in SHIPPED_ADDRESS.split(str(before))]
    return isinstance(after, str) and re.fullmatch(OURS.join(frame), after) is not None


@pytest.mark.parametrize(("server", "inside", "source"), SERVERS_AND_FILES, ids=lambda value: str(value).strip("/"))
def test_a_live_configuration_differs_from_the_shipped_one_in_addresses_and_waiting_times_alone(
    stack: Stack, server: str, inside: str, source: str
):
    shipped = COLLECTOR / source
    files = sorted(shipped.rglob("*.yaml")) if shipped.is_dir() else [shipped]
    assert files
    for file in files:
        live = stack.configs.path(server, inside + (file.relative_to(shipped).as_posix() if shipped.is_dir() else ""))
        before, after = (dict(leaves(yaml.safe_load(path.read_text()))) for path in (file, live))
        assert list(before) == list(after)
        wrong = {where: (before[where], after[where]) for where in before if not _same_or_allowed(where, before[where], after[where])}
        assert not wrong


def _same_or_allowed(where: tuple[str | int, ...], before: Any, after: Any) -> bool:
    return before == after or allowed(where[-1], before, after)


@pytest.mark.parametrize(
    ("key", "before", "after"),
    [
        ("endpoint", "0.0.0.0:4317", "127.0.0.1:4317x"),
        ("endpoint", "jaeger:4317", "otherwise"),
        ("check_interval", "10s", "1s"),
        ("for", "1s", "2s"),
        ("limit_percentage", 75, 80),
        ("expr", "a > 0.8", "a > 0.1"),
    ],
)
def test_another_difference_would_be_seen(key: str, before: Any, after: Any):
    assert not allowed(key, before, after)


def test_every_server_listens_on_loopback_alone(stack: Stack):
    listening = {port for port in _listening_elsewhere() if port in set(stack.configs._taken.values())}
    assert not listening


def _listening_elsewhere() -> set[int]:
    """Give the ports that this machine offers to others, as the kernel lists them."""
    found = set()
    for table, loopback in (
        ("/proc/net/tcp", ("0100007F",)),
        ("/proc/net/tcp6", ("00000000000000000000000001000000", "0000000000000000FFFF00000100007F")),
    ):
        for line in Path(table).read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            address, port = local.split(":")
            if state == "0A" and address not in loopback:
                found.add(int(port, 16))
    return found
