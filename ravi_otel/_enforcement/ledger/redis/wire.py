"""Open connections to Redis and say one thing over them: the one file that knows redis-py.

A connection belongs to no event loop: what is sent fits the socket's buffer, the wait for each piece of the answer is coloured, and a
piece is read when it is there. So threads, asyncio and trio share the same ones, and none has to be closed with a loop. The library
connects and logs in; answers are read by `framing`, for the library's own way to read has neither a deadline nor a bound.
"""

from __future__ import annotations

import asyncio
import codecs
import re
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Literal

from ravi_otel import _extras
from ravi_otel._enforcement.ledger.failing import StoreError
from ravi_otel._enforcement.ledger.redis.framing import Answer, ForeignAnswerError, SaidNoError, one_word
from ravi_otel._enforcement.ledger.redis.url import Address, Host
from ravi_otel._enforcement.sleeper import in_asyncio_task
from ravi_otel._flow import Flow, Step
from ravi_otel.policy.checks import show

Ailment = Literal["unreachable", "dropped", "late", "elsewhere", "moved", "asking", "moving", "refused", "unscripted", "resting"]

_LEAST_WAIT_S: Final = 0.001
_PIECE: Final = 1 << 16
_MOVES: Final = re.compile(r"(MOVED|ASK) \d{1,5} (\S+):(\d{1,5})")
_NOT_LET_IN: Final = "because it does not let this user in"
_LAST_WORDS: Final = "Protocol error"
"""What a server says before it closes a connection."""
_FOR_A_WHILE: Final = ("NOREPLICAS", "MISCONF", "BUSY", "'maxmemory'", "OOM ")
_Told = tuple[str, Ailment]
_ANSWERS: Final[tuple[tuple[tuple[str, ...], tuple[str, ...], _Told], ...]] = (
    (("NOSCRIPT",), ("NoScriptError",), ("because it lost a script", "unscripted")),
    (
        ("READONLY", "MASTERDOWN", "CLUSTERDOWN", "LOADING"),
        ("ReadOnlyError", "BusyLoadingError", "ClusterDownError", "MasterDownError"),
        ("because it takes no writes now", "elsewhere"),
    ),
    (("TRYAGAIN",), ("TryAgainError",), ("because what it keeps of this is being moved to another server", "moving")),
    (
        ("NOAUTH", "WRONGPASS", "NOPERM", "unauthenticated"),
        ("AuthenticationError", "NoPermissionError"),
        (_NOT_LET_IN, "refused"),
    ),
)
"""Answers that are errors: by a word in them, which a script's errors have where the library makes no class of them, or by class."""


class WireError(StoreError):
    """Say what went wrong with a connection or with what was said over it; `at` is where to ask instead.

    `ended` where the server said no and closed the connection, too.
    """

    def __init__(self, why: str, ailment: Ailment, at: Host | None = None, *, ended: bool = False) -> None:
        super().__init__(why)
        self.ailment: Ailment = ailment
        self.at = at
        self.ended = ended

    @property
    def answered(self) -> bool:
        """Tell that the server lives: it said no."""
        return self.ailment in ("moved", "asking", "moving", "refused", "unscripted")

    @property
    def locked_out(self) -> bool:
        """Tell that the server lives, and that what is wrong is the user or the password."""
        return self.why == _NOT_LET_IN

    @property
    def passes(self) -> bool:
        """Tell that it said no for a while only: what is owed may be taken later."""
        return self.ailment == "moving" or any(word in self.why for word in _FOR_A_WHILE)


class Wire:
    """Be one open connection, used by one caller at a time."""

    __slots__ = ("_connection", "_pack", "_socket")

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._pack = _packer()
        self._socket = connection._sock  # noqa: SLF001 - the library waits on it in one colour only

    def say(self, words: Sequence[Any], until: float) -> Flow[Any]:
        """Send a command and give its answer; WireError when there is none by `until` (of time.monotonic)."""
        # hiredis takes the whole process down where it is given a number and a signal's handler raises meanwhile.
        plain = tuple([word if type(word) is str or type(word) is bytes else str(word) for word in words])
        try:
            self._socket.settimeout(max(until - time.monotonic(), _LEAST_WAIT_S))
            if self._pack is None:
                self._connection.send_packed_command(self._connection.pack_command(*plain), check_health=False)
            else:
                self._socket.sendall(self._pack(plain))
            answer = yield Step(partial(self._read, until), partial(self._read_when_there, until))
        except ForeignAnswerError as foreign:
            raise WireError(foreign.why, "refused", ended=True) from None
        except SaidNoError as said:
            raise diagnose(self._connection._parser.parse_error(str(said))) from None  # noqa: SLF001 - what makes the library's errors of words
        except Exception as error:  # noqa: BLE001 - whatever the library raises is said in our words
            raise diagnose(error) from None
        return answer

    def _read(self, until: float) -> Any:
        piece = self._piece()
        word = one_word(piece)
        if word is not None:
            return word
        answer = Answer()
        while not answer.feed(piece):
            self._socket.settimeout(_left_s(until))
            piece = self._piece()
        return answer.value

    async def _read_when_there(self, until: float) -> Any:
        answer = Answer()
        self._socket.settimeout(0.0)
        in_task, left_s = in_asyncio_task(), max(until - time.monotonic(), _LEAST_WAIT_S)
        while True:
            if not await (_readable(self._socket, left_s) if in_task else _readable_anywhere(self._socket, left_s)):
                raise TimeoutError
            try:
                while not answer.feed(self._piece()):  # TLS may have more of it than the socket shows
                    _left_s(until)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                left_s = _left_s(until)
            else:
                return answer.value

    def _piece(self) -> bytes:
        piece: bytes = self._socket.recv(_PIECE)
        if not piece:
            raise ConnectionError
        return piece

    def close(self) -> None:
        """Let it go; in a forked child the parent's end stays open."""
        self._connection.disconnect()


def _left_s(until: float) -> float:
    """Give how long an answer may still be waited for; TimeoutError where that is over."""
    left_s = until - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return max(left_s, _LEAST_WAIT_S)


def _packer() -> Callable[[tuple[Any, ...]], bytes] | None:
    """Give the parser's own way to write a command, in C; the library looks at each word before it goes there. None: not installed."""
    try:
        pack: Callable[[tuple[Any, ...]], bytes] | None = getattr(_extras.load("hiredis"), "pack_command", None)
    except ImportError:
        return None
    return pack


async def _readable(sock: socket.socket, left_s: float) -> bool:
    loop = asyncio.get_running_loop()
    there: asyncio.Future[bool] = loop.create_future()
    number = sock.fileno()
    loop.add_reader(number, _settle, there, True)  # noqa: FBT003 - a callback takes no keyword
    alarm = loop.call_later(left_s, _settle, there, False)  # noqa: FBT003 - the same
    try:
        return await there
    finally:
        loop.remove_reader(number)
        alarm.cancel()


def _settle(there: asyncio.Future[bool], value: bool) -> None:
    if not there.done():
        there.set_result(value)


async def _readable_anywhere(sock: socket.socket, left_s: float) -> bool:
    anyio = _extras.load("anyio")
    with anyio.move_on_after(left_s):
        await (anyio.wait_readable if hasattr(anyio, "wait_readable") else anyio.wait_socket_readable)(sock)
        return True
    return False


def _moved(error: Any, known: Any, text: str) -> WireError | None:
    if isinstance(error, known.AskError):  # MovedError is one, to the library
        return _elsewhere("MOVED" if isinstance(error, known.MovedError) else "ASK", error.host, error.port)
    found = _MOVES.fullmatch(text)  # older libraries read it in their own client for Clusters alone
    return _elsewhere(*found.groups()) if found else None


def _elsewhere(word: str, host: str, port: str) -> WireError:
    return WireError("because its slots are moving", "asking" if word == "ASK" else "moved", (host, int(port)))


def diagnose(error: Exception) -> WireError:
    """Say what an error of the library means. A server's own words are shown only where they hold no name and no secret."""
    if isinstance(error, WireError | UnicodeEncodeError):
        return error if isinstance(error, WireError) else WireError("because it cannot be told a name that is no text", "refused")
    known: Any = _extras.load("redis.exceptions")
    if isinstance(error, known.TimeoutError | TimeoutError):
        return WireError("because it does not answer in time", "late")
    text = str(error)
    if moved := _moved(error, known, text):
        return moved
    for words, kinds, meant in _ANSWERS:
        if any(word in text for word in words) or isinstance(error, tuple(getattr(known, kind) for kind in kinds)):
            return WireError(*meant, ended=_LAST_WORDS in text)
    if isinstance(error, known.ResponseError):
        return WireError(f"because it answered {show(text)}", "refused", ended=_LAST_WORDS in text)
    return WireError("because the connection to it ended", "dropped")


def prepare(address: Address) -> None:
    """Import what is needed to talk to it, which takes longer than a call may; MissingExtraError where that is not installed."""
    for name in ("redis", "redis.exceptions", *(["redis.cluster", "redis.crc"] if address.kind == "cluster" else ["redis.sentinel"])):
        _extras.load(name)
    # What the first connection imports by itself: a child forked in the middle of that would never have it whole.
    codecs.lookup("idna")
    _extras.load("redis").Connection()


def open_wire(address: Address, place: Host | None, timeout_s: float) -> Wire:
    """Connect to `place`, None: to the one that the address means; WireError when that cannot be done. Blocks."""
    redis = _extras.load("redis")
    try:
        if address.kind == "unix":
            return _connected(redis.UnixDomainSocketConnection(path=address.path, **_login(address, timeout_s)))
        host, port = place or (_master(address, timeout_s) if address.kind == "sentinel" else address.hosts[0])
        kind = redis.Connection if address.tls is None else redis.SSLConnection
        return _connected(kind(host=host, port=port, **_login(address, timeout_s), **(address.tls or {})))
    except Exception as error:  # noqa: BLE001 - whatever the library raises is said in our words
        trouble = diagnose(error)
        if trouble.answered:
            raise trouble from None
        raise WireError("because it cannot be reached", "unreachable") from None


def _connected(connection: Any) -> Wire:
    connection.connect()
    return Wire(connection)


def _login(address: Address, timeout_s: float) -> dict[str, Any]:
    return {
        "db": address.db,
        "username": address.username,
        "password": address.password,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "protocol": 2,
    }


def _master(address: Address, timeout_s: float) -> Host:
    sentinel_module = _extras.load("redis.sentinel")
    login = {"username": address.sentinel_username, "password": address.sentinel_password}
    tls = {} if address.tls is None else {"ssl": True, **address.tls}
    options = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s, "protocol": 2, **_never_again(), **tls}
    sentinel = sentinel_module.Sentinel(address.hosts, sentinel_kwargs={**options, **login})
    try:
        host, port = sentinel.discover_master(address.service)
        return str(host), int(port)
    finally:
        for each in sentinel.sentinels:
            each.close()


def slots(address: Address, timeout_s: float) -> dict[int, Host]:
    """Ask a Cluster which of its servers keeps which slot. Blocks."""
    cluster = _extras.load("redis.cluster")
    login = {key: value for key, value in _login(address, timeout_s).items() if key != "db"}
    tls = {} if address.tls is None else {"ssl": True, **address.tls}
    nodes = [cluster.ClusterNode(host, port) for host, port in address.hosts]
    try:
        client = cluster.RedisCluster(startup_nodes=nodes, require_full_coverage=False, **_never_again(), **login, **tls)
    except Exception as error:  # noqa: BLE001 - whatever the library raises is said in our words
        trouble = diagnose(error)
        raise trouble if trouble.answered else WireError("because no server of the Cluster can be reached", "unreachable") from None
    try:
        return {slot: (kept[0].host, kept[0].port) for slot, kept in client.nodes_manager.slots_cache.items()}
    finally:
        client.close()


def _never_again() -> dict[str, Any]:
    return {"retry": _extras.load("redis.retry").Retry(_extras.load("redis.backoff").NoBackoff(), 0)}


def slot_of(key: str) -> int:
    """Give the slot of a Cluster that a key belongs to."""
    return int(_extras.load("redis.crc").key_slot(key.encode()))
