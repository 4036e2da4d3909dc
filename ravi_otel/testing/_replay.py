"""Serve recorded exchanges over real HTTP, byte for byte."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self, cast

from ravi_otel.errors import ConfigurationError
from ravi_otel.testing._loopback import Loopback, Message, Receive, Send, body_of, respond
from ravi_otel.testing._script import FINAL
from ravi_otel.testing._wire.payload import failure

_DROPPED = frozenset(
    {
        "connection",
        "content-encoding",
        "content-length",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "set-cookie",
        "te",
        "trailer",
        "trailers",
        "transfer-encoding",
        "upgrade",
    }
)
_MEAN_CHUNK = 200


@dataclass(frozen=True, slots=True)
class Exchange:
    """Be one recorded request with its answer; `request` is the JSON that was sent, or None when it was not kept."""

    method: str
    path: str
    request: Any
    status: int
    headers: Mapping[str, str]
    body: str

    @classmethod
    def read(cls, found: object) -> Self:
        """Read `{method, path, request, status, headers, body}`; raises ConfigurationError saying what is wrong."""
        try:
            entry = cast("dict[str, Any]", found)
            headers = {str(name).lower(): str(value) for name, value in entry["headers"].items()}
            return cls(str(entry["method"]), str(entry["path"]), entry.get("request"), int(entry["status"]), headers, str(entry["body"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            msg = f"A recorded exchange cannot be read ({error!r}): give method, path, request, status, headers and body."
            raise ConfigurationError(msg) from error

    @property
    def streamed(self) -> bool:
        """Tell whether the answer is a stream of server-sent events."""
        return self.headers.get("content-type", "").startswith("text/event-stream")


@dataclass(frozen=True, slots=True)
class Recording:
    """Be one recorded file: its path below the folder, without `.json`, and its exchanges in order."""

    name: str
    exchanges: tuple[Exchange, ...]


def load_recordings(folder: str | Path) -> list[Recording]:
    """Read every `.json` file below `folder`, sorted by name; raises ConfigurationError naming the folder or the file."""
    root = Path(folder)
    if not root.is_dir():
        msg = f"load_recordings(folder={str(folder)!r}) is no folder: give the one that holds the recorded .json files."
        raise ConfigurationError(msg)
    return [_recording(root, path) for path in sorted(root.rglob("*.json"))]


def _recording(root: Path, path: Path) -> Recording:
    try:
        entries: Any = json.loads(path.read_text(encoding="utf-8"))
        exchanges = tuple(Exchange.read(entry) for entry in entries)
    except (OSError, ValueError, TypeError) as error:
        msg = f"{path} is no recording ({error}): expected a JSON list of exchanges."
        raise ConfigurationError(msg) from error
    return Recording(path.relative_to(root).with_suffix("").as_posix(), exchanges)


class ReplayServer(Loopback):
    """Answer with recorded exchanges: status, body byte for byte, and headers but for those of the connection.

    A request takes the first unused exchange of its method and path, one with the same JSON body before others; a
    prefix that only one side has (`/proxy/openai`) is ignored, and so is the query where none is equal. A request
    without an exchange gets a 404 that is not retried, and is kept in `unmatched`. Streams are sent in chunks cut at
    arbitrary bytes, the same for the same `seed`.
    """

    def __init__(self, exchanges: Iterable[Exchange | Mapping[str, Any]], *, seed: int = 0) -> None:
        super().__init__(self._handle)
        self._all = tuple(found if isinstance(found, Exchange) else Exchange.read(found) for found in exchanges)
        self._seed = seed
        self._lock = threading.Lock()
        self._left = list(self._all)
        self._unmatched: list[str] = []

    @property
    def base_url(self) -> str:
        """Give what the client is told: `OpenAI(base_url=server.base_url, api_key="any")`."""
        return f"{self.url}/v1"

    @property
    def left(self) -> tuple[Exchange, ...]:
        """Give the exchanges nobody asked for yet."""
        with self._lock:
            return tuple(self._left)

    @property
    def unmatched(self) -> tuple[str, ...]:
        """Give `METHOD path` of every request that had no exchange."""
        with self._lock:
            return tuple(self._unmatched)

    def reset(self) -> None:
        """Begin again with every exchange unused."""
        with self._lock:
            self._left = list(self._all)
            self._unmatched.clear()

    def _take(self, method: str, path: str, raw: bytes) -> Exchange | None:
        body = _parsed(raw)
        with self._lock:
            ranked = [(_distance(method, path, body, found), at) for at, found in enumerate(self._left)]
            best = min(((rank, at) for rank, at in ranked if rank is not None), default=None)
            if best is None:
                self._unmatched.append(f"{method} {path}")
                return None
            return self._left.pop(best[1])

    async def _handle(self, scope: Message, receive: Receive, send: Send) -> None:
        raw = await body_of(receive)
        if raw is None:
            return
        query = scope["query_string"].decode("latin-1")
        path = scope["path"] + (f"?{query}" if query else "")
        found = self._take(scope["method"], path, raw)
        if found is None:
            missing = failure(404, f"No recorded exchange is left for {scope['method']} {path}.", code="not_recorded")
            headers = {"content-type": "application/json", **FINAL}
            await respond(send, missing.status, headers, _chunks([missing.parts[0]]))
        else:
            kept = {name: value for name, value in found.headers.items() if name not in _DROPPED}
            await respond(send, found.status, kept, _chunks(self._cut(found)))

    def _cut(self, found: Exchange) -> list[bytes]:
        body = found.body.encode("utf-8", "surrogateescape")
        if not found.streamed:
            return [body]
        # The places are only to be arbitrary, and the same in every run.
        places = random.Random(f"{self._seed} {len(body)}")  # noqa: S311 - no secret is made of them
        cuts = sorted({0, len(body), *(places.randrange(len(body) + 1) for _ in range(1 + len(body) // _MEAN_CHUNK))})
        return [body[start:end] for start, end in pairwise(cuts)] or [b""]


async def _chunks(parts: list[bytes]) -> AsyncIterator[tuple[bytes, bool]]:
    for at, part in enumerate(parts, 1):
        await asyncio.sleep(0)
        yield part, at == len(parts)


def _parsed(raw: bytes) -> object:
    try:
        return json.loads(raw) if raw else None
    except (ValueError, RecursionError):
        return None


def _distance(method: str, path: str, body: object, found: Exchange) -> tuple[int, int] | None:
    """Rank an exchange for a request: smaller is nearer, None is no match."""
    if method != found.method:
        return None
    asked, recorded = _tail(path), _tail(found.path)
    if asked != recorded and not (_is_suffix(asked, recorded) or _is_suffix(recorded, asked)):
        return None
    place = 0 if path == found.path else 1 if asked == recorded else 2
    return place, int(body is None or body != found.request)


def _tail(path: str) -> list[str]:
    """Give the segments below the last /v1/, without the query."""
    bare = path.partition("?")[0]
    return bare.rpartition("/v1/")[2].strip("/").split("/")


def _is_suffix(short: list[str], long: list[str]) -> bool:
    """Tell whether `long` is `short` below a prefix; "chat/completions" is no prefixed "completions"."""
    return len(short) < len(long) and long[-len(short) :] == short and long[-len(short) - 1] != "chat"
