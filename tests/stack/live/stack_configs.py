"""The shipped configurations as processes on one machine need them: other addresses, other folders, shorter intervals, nothing else.

Each change is kept in `replaced`, and printed at the start of the tests; test_configs.py says that there is no other difference.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from stack_process import Ports

COLLECTOR = Path(__file__).parents[3] / "collector"
HOSTS = ("collector", "prometheus", "alertmanager", "jaeger", "loki")
"""The servers' names inside the stack's own network."""

ADDRESS = re.compile(rf"(?<![\w.-])({'|'.join(HOSTS)}|0\.0\.0\.0|127\.0\.0\.1|localhost):(\d{{2,5}})(?!\d)")
ANY_HOST = re.compile(r"((?:^|=)):(\d{2,5})$")
FOLDER = re.compile(r"(?<![\w./:-])/(?:etc|var|loki|prometheus|alertmanager|tmp|data|badger)(?:/[\w.*{}/-]*)?(?![\w])")
PORT_KEYS = frozenset({"port", "http_listen_port", "grpc_listen_port"})
INTERVALS = {
    "metrics_flush_interval": "1s",
    "scrape_interval": "2s",
    "scrape_timeout": "2s",
    "evaluation_interval": "1s",
    "interval": "1s",
    "for": "1s",
    "keep_firing_for": "2s",
    "flush_timeout": "100ms",
    "group_wait": "1s",
    "group_interval": "1s",
    "resolve_timeout": "2s",
}
"""Keys whose durations are how long something waits before it acts, and how long that is here; a shorter one is left."""

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0, "y": 31_536_000.0}


@dataclasses.dataclass(frozen=True)
class Replaced:
    """Be one change: in `file`, at the `where` of keys and indices, from `before` to `after`."""

    file: str
    where: tuple[str | int, ...]
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.file}: {'.'.join(map(str, self.where))}: {self.before!r} -> {self.after!r}"


def seconds(duration: object) -> float | None:
    """Give a duration such as 1m30s in seconds, or None for what is none."""
    text = str(duration)
    parts = re.findall(r"(\d+)(ms|[smhdwy])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(int(number) * _UNITS_S[unit] for number, unit in parts)


class Configs:
    """Write the configurations below `root`, one folder a server, and know which port each of their ports has become."""

    def __init__(
        self,
        root: Path,
        ports: Ports,
        elsewhere: Mapping[str, str],
        but: Mapping[tuple[str | int, ...], Any] = {},
        intervals: Mapping[str, str] = INTERVALS,
    ):
        self._root = root
        self._intervals = intervals
        self._ports = ports
        self._taken: dict[tuple[str, int], int] = {}
        self._elsewhere = elsewhere
        self._but = but
        self.replaced: list[Replaced] = []

    def directory(self, server: str) -> Path:
        """Give a server's own folder."""
        return self._root / server

    def port(self, server: str, port: int) -> int:
        """Give the port that `port` of `server` is here."""
        if (server, port) not in self._taken:
            self._taken[server, port] = self._ports.take()
        return self._taken[server, port]

    def url(self, server: str, port: int) -> str:
        return f"http://127.0.0.1:{self.port(server, port)}"

    def path(self, server: str, inside: str) -> Path:
        """Give the path here of what the server's container has at `inside`."""
        return self.directory(server) / inside.lstrip("/")

    def text(self, server: str, text: str) -> str:
        """Rewrite one value or argument: its addresses and its folders."""
        for before, after in self._elsewhere.items():
            if text.startswith(before):
                return after + text.removeprefix(before)
        if text == "0.0.0.0":
            return "127.0.0.1"
        text = ADDRESS.sub(lambda found: self._address(server, found[1], int(found[2])), text)
        text = ANY_HOST.sub(lambda found: found[1] + self._address(server, "", int(found[2])), text)
        return FOLDER.sub(lambda found: str(self.path(server, found[0])), text)

    def write(self, server: str, inside: str, source: Path) -> None:
        """Derive the server's file `inside` from `source`; a folder is derived file by file, and what is no YAML is copied."""
        if source.is_dir():
            for file in sorted(file for file in source.rglob("*") if file.is_file()):
                self.write(server, f"{inside}/{file.relative_to(source)}", file)
            return
        target = self.path(server, inside)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix != ".yaml":
            shutil.copyfile(source, target)
            return
        tree = yaml.safe_load(source.read_text())
        target.write_text(
            yaml.safe_dump(self.derived(server, source.relative_to(COLLECTOR).as_posix(), tree), sort_keys=False, width=10_000)
        )

    def derived(self, server: str, file: str, tree: Any) -> Any:
        """Give the tree with what must be replaced replaced, and remember it."""
        return self._rewrite(server, file, (), tree)

    def _rewrite(self, server: str, file: str, where: tuple[str | int, ...], node: Any) -> Any:
        if isinstance(node, dict):
            return {key: self._rewrite(server, file, (*where, key), value) for key, value in node.items()}
        if isinstance(node, list):
            return [self._rewrite(server, file, (*where, index), value) for index, value in enumerate(node)]
        after = self._but[where] if where in self._but else self._leaf(server, where[-1] if where else "", node)
        if after != node:
            self.replaced.append(Replaced(file, where, node, after))
        return after

    def _leaf(self, server: str, key: str | int, leaf: Any) -> Any:
        if isinstance(leaf, int) and not isinstance(leaf, bool):
            return self.port(server, leaf) if key in PORT_KEYS else leaf
        if not isinstance(leaf, str):
            return leaf
        now, wanted = seconds(leaf), seconds(self._intervals.get(str(key), ""))
        if now is not None and wanted is not None:
            return self._intervals[str(key)] if now > wanted else leaf
        return self.text(server, leaf)

    def _address(self, server: str, host: str, port: int) -> str:
        return f"127.0.0.1:{self.port(host if host in HOSTS else server, port)}"


def leaves(node: Any, where: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Give every scalar of a tree with its keys; an empty map or list is one too."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    inside = list(items)
    if not inside:
        yield where, node
    for key, value in inside:
        yield from leaves(value, (*where, key))
