"""Run scripts on a Redis through redis-py: sync and async, bounded in time, over connections of this process alone.

redis-py connects, logs in, speaks TLS and the protocol, and asks sentinels for the master. Ours is what it has no bound for: how long a
whole call takes. Its time-outs begin anew with each piece of an answer, and its pool resolves names, connects and logs in within the call
that finds no connection. So a `Server` has a connection opened by a thread beside the callers, and a `Connection` is read through a
`DeadlineSocket`. As a connection belongs to no event loop, threads, asyncio and trio share the same ones, and none has to be closed with
a loop. Which server of a Cluster keeps a slot is asked of one that the URL names: its answer, MOVED, says so, and is remembered.

What that cost before commands were packed here, too, one EVALSHA of four keys, p50 in the best of five rounds on a busy machine of two
cores: 90 µs, through `redis.Redis` 102; awaited 168 µs, through `redis.asyncio.Redis` 197; fifty awaited at once 153 and 173 each.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import contextvars
import os
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Any, Final, Literal

from ravi_otel import _extras
from ravi_otel._enforcement.clock import Clock, SystemClock
from ravi_otel._enforcement.ledger.redis.messages import Script
from ravi_otel._enforcement.ledger.redis.url import Address, Host, read
from ravi_otel._enforcement.ledger.store_failures import StoreError
from ravi_otel._enforcement.sleeper import Sleeper, in_asyncio_task
from ravi_otel._flow import Flow, Step, run_sync
from ravi_otel._forksafe import without_signals
from ravi_otel.policy._checks import show

Failure = Literal["unreachable", "dropped", "late", "readonly", "moved", "ask", "try_again", "refused", "no_script", "given_up"]

FIRST_S: Final = 1.0
"""How long a process's first call may take, which opens the connection."""

MOST_FOR_TASKS: Final = 16
"""A server does one thing at a time: more connections only make it slower. Threads may open more, or one that blocks an event loop could
wait for a task of that loop."""

_OPENING_S: Final = 2.0
"""How long a thread beside the callers tries to open a connection; who waits for it waits no longer than the call's time."""

_LONGEST_QUEUE_S: Final = 30.0
_LEAST_WAIT_S: Final = 0.001
_MOST_BYTES: Final = 16 << 20
"""How long an answer may be: a listing of some hundred counters is the longest we ask for."""

_MOST_TRIES: Final = 2
_MOST_REDIRECTS: Final = 5
_TRIED_AGAIN: Final[tuple[Failure, ...]] = ("dropped", "readonly")
"""What is tried once more, over a new connection, before it counts as a failure."""


# -- what goes wrong ----------------------------------------------------------------------------------------------

_NO_THREAD: Final = "because no thread can be started to reach it"
_NOT_LET_IN: Final = "because it does not let this user in"
_FOREIGN_ANSWER: Final = "because it answers what no server of ours says"
_SAME_HOST: Final = ("", "?")
"""What a Cluster says that names its servers by their ports alone (`cluster-preferred-endpoint-type`): the host that was asked."""
_LAST_WORDS: Final = "Protocol error"
"""What a server says before it closes a connection."""

_ANSWERS: Final[tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, Failure]], ...]] = (
    (("NOSCRIPT",), ("NoScriptError",), ("because it lost a script", "no_script")),
    (
        ("READONLY", "MASTERDOWN", "CLUSTERDOWN", "LOADING"),
        ("ReadOnlyError", "BusyLoadingError", "ClusterDownError", "MasterDownError"),
        ("because it takes no writes now", "readonly"),
    ),
    (("TRYAGAIN",), ("TryAgainError",), ("because what it keeps of this is being moved to another server", "try_again")),
    (("NOAUTH", "WRONGPASS", "NOPERM", "unauthenticated"), ("AuthenticationError", "NoPermissionError"), (_NOT_LET_IN, "refused")),
)
"""Answers that are errors: by redis-py's class, or by a word in them, which a script's errors have and redis-py makes no class of."""


_NOT_NOW: Final = ("MISCONF", "OOM", "NOREPLICAS", "BUSY", "NOAUTH", "NOPERM", "WRONGPASS", "UNKILLABLE", "max number of", "this user in")
"""What is in the answers of a server that takes nothing at all now."""

_UNSENT: Final[tuple[Failure, ...]] = ("unreachable", "given_up")


class ServerError(StoreError):
    """What went wrong with a server or a connection to it.

    `redirect` is where a Cluster says to ask instead. `ended` is set where the server answered and closed the connection, too, `sent`
    where a call may have come to it.
    """

    sent = True

    def __init__(self, why: str, kind: Failure, redirect: Host | None = None, *, ended: bool = False) -> None:
        super().__init__(why)
        self.kind: Failure = kind
        self.redirect = redirect
        self.ended = ended

    @property
    def answered(self) -> bool:
        """Whether the server lives: it said no."""
        return self.kind in ("moved", "ask", "try_again", "refused", "no_script")

    @property
    def its_own(self) -> bool:  # type: ignore[override]  # what is a constant of any other error
        """Whether the server takes what else it is asked, and not this."""
        return self.kind == "refused" and not any(word in self.why for word in _NOT_NOW)

    @property
    def is_login(self) -> bool:
        """Whether the server lives, and the user or the password is what is wrong."""
        return self.why == _NOT_LET_IN


def _late() -> ServerError:
    return ServerError("because it does not answer in time", "late")


def _given_up() -> ServerError:
    return ServerError("because it has not answered lately", "given_up")


def server_error(error: Exception) -> ServerError:
    """Return what an error means, whoever raised it. A server's own words are shown only where they hold no name and no secret."""
    if isinstance(error, ServerError):
        return error
    if isinstance(error, UnicodeEncodeError):
        return ServerError("because it cannot be told a name that is no text", "refused")
    known: Any = _extras.load("redis.exceptions")
    if isinstance(error, known.TimeoutError | TimeoutError):
        return _late()
    if isinstance(error, known.AskError):  # redis-py derives MovedError from it
        asked: Any = error
        kind: Failure = "moved" if isinstance(error, known.MovedError) else "ask"
        return ServerError("because its slots are moving", kind, (str(asked.host), int(asked.port)))
    return _error_of_answer(error, str(error), known)


def _error_of_answer(error: Exception, text: str, known: Any) -> ServerError:
    for words, classes, (why, kind) in _ANSWERS:
        if any(word in text for word in words) or isinstance(error, tuple(getattr(known, name) for name in classes)):
            return ServerError(why, kind, ended=_LAST_WORDS in text)
    if isinstance(error, known.ResponseError):
        return ServerError(f"because it answered {show(text)}", "refused", ended=_LAST_WORDS in text)
    if isinstance(error, known.InvalidResponse | ValueError | RecursionError):
        return ServerError(_FOREIGN_ANSWER, "refused", ended=True)
    return ServerError("because the connection to it ended", "dropped")


# -- one connection -----------------------------------------------------------------------------------------------


class DeadlineSocket:
    """Be the socket that redis-py reads from and writes to, and let it wait no longer than `until`, however many pieces an answer has.

    Where it does not wait (`waits`), as on an event loop, what is not there yet is a TimeoutError; redis-py goes on where it was.
    """

    __slots__ = ("_read", "_socket", "until", "waits")

    def __init__(self, socket: Any, until: float) -> None:
        self._socket = socket
        self._read = 0
        self.until = until
        self.waits = True

    def arm(self, until: float) -> None:
        """Begin another command, which has its answer by `until` (of time.monotonic)."""
        self.until, self.waits, self._read = until, True, 0

    def left_s(self) -> float:
        """Return how long may still be waited; raise TimeoutError where that is over.

        The first piece is looked for however late this process comes to it: on a busy machine it is there, and nobody waits for it.
        """
        left_s = self.until - time.monotonic()
        if left_s <= 0 and self._read:
            raise TimeoutError
        return max(left_s, _LEAST_WAIT_S)

    def recv(self, size: int) -> bytes:
        """See `socket.recv`."""
        left_s = self.left_s()
        if not self.waits:
            self._socket.settimeout(0.0)
        elif self._read:  # the first piece has the time that sending had: what a busy machine takes in between is not the server's
            self._socket.settimeout(left_s)
        try:
            piece: bytes = self._socket.recv(size)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise TimeoutError from None
        self._read += len(piece)
        if self._read > _MOST_BYTES:
            raise ServerError(_FOREIGN_ANSWER, "refused", ended=True)
        return piece

    def sendall(self, data: bytes) -> None:
        """See `socket.sendall`: a command fits the socket's buffer, unless the server has stopped reading."""
        self._socket.settimeout(max(self.until - time.monotonic(), _LEAST_WAIT_S))
        self._socket.sendall(data)

    def settimeout(self, _: float | None) -> None:
        """Leave it as it is: redis-py sets its own."""

    async def readable(self) -> None:
        """Wait until there is something to read; raise TimeoutError where there is nothing by `until`."""
        left_s = self.left_s()
        if not in_asyncio_task():
            anyio = _extras.load("anyio")
            with anyio.fail_after(left_s):
                await (anyio.wait_readable if hasattr(anyio, "wait_readable") else anyio.wait_socket_readable)(self._socket)
            return
        loop, number = asyncio.get_running_loop(), self._socket.fileno()
        there: asyncio.Future[None] = loop.create_future()
        loop.add_reader(number, _settle, there)
        try:
            async with asyncio.timeout(left_s):
                await there
        finally:
            loop.remove_reader(number)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


def _settle(there: asyncio.Future[None]) -> None:
    if not there.done():
        there.set_result(None)


class Connection:
    """One open connection of redis-py's, used by one caller at a time."""

    __slots__ = ("_parser", "_redis", "_socket")

    def __init__(self, connection: Any) -> None:
        self._redis = connection
        self._parser = connection._parser  # noqa: SLF001 - it reads through the socket that `connect` gave it
        self._socket: DeadlineSocket = connection._sock  # noqa: SLF001 - the same

    def ask(self, words: Sequence[Any], until: float) -> Flow[Any]:
        """Send a command and return its answer; raise ServerError when there is none by `until` (of time.monotonic)."""
        try:
            command = _packed(words)
            self._socket.arm(until)
            self._socket.sendall(command)
            answer = yield Step(self._read, self._read_when_there)
            if self._parser._buffer.unread_bytes():  # noqa: SLF001 - that something is left is said nowhere else, without reading
                raise ServerError(_FOREIGN_ANSWER, "refused", ended=True)  # noqa: TRY301 - it is one of several
        except Exception as error:  # noqa: BLE001 - whatever redis-py raises is said in our words
            trouble = server_error(error)
            if trouble.redirect is not None and trouble.redirect[0] in _SAME_HOST:
                trouble.redirect = (self._redis.host, trouble.redirect[1])
            raise trouble from None
        return answer

    def _read(self) -> Any:
        answer = self._parser.read_response()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _read_when_there(self) -> Any:
        self._socket.waits = False
        late: Any = _extras.load("redis.exceptions").TimeoutError
        while True:
            await self._socket.readable()
            with contextlib.suppress(late):  # only a part of it is there
                return self._read()

    def close(self) -> None:
        """Close it; in a forked child the parent's end stays open."""
        self._redis.disconnect()


def _packed(words: Sequence[Any]) -> bytes:
    """Write a command as the protocol has it: in 2 µs, where redis-py takes 3 with hiredis, and 20 without."""
    pieces = [b"*%d\r\n" % len(words)]
    for word in words:
        piece = word if type(word) is bytes else str(word).encode()
        pieces.append(b"$%d\r\n%b\r\n" % (len(piece), piece))
    return b"".join(pieces)


def prepare(address: Address) -> None:
    """Import what is needed to talk to it, which takes longer than a call may; raise MissingExtraError where that is not installed."""
    for name in ("redis", "redis.exceptions", "redis.crc" if address.kind == "cluster" else "redis.sentinel"):
        _extras.load(name)
    # What the first connection imports by itself: a child forked in the middle of that would never have it whole.
    codecs.lookup("idna")
    _extras.load("redis").Connection()


def connect(address: Address, hosts: Iterable[Host | None], timeout_s: float) -> Connection:
    """Connect to the first of `hosts` that can be reached, None: to the server that the address means. Blocks.

    ServerError, that of the last one, when none can.
    """
    trouble = _unreachable()
    for host in hosts:
        try:
            return _connect(address, host, timeout_s)
        except ServerError as error:
            trouble = error
    raise trouble


def _connect(address: Address, host: Host | None, timeout_s: float) -> Connection:
    def on_connect(connection: Any) -> None:
        connection._sock = DeadlineSocket(connection._sock, time.monotonic() + timeout_s)  # noqa: SLF001 - it takes no other
        connection.on_connect()
        if address.kind == "cluster":  # one that is of none says so now
            connection.send_command("CLUSTER", "SLOTS")
            connection.read_response()

    redis = _extras.load("redis")
    options = {
        "redis_connect_func": on_connect,
        # Not hiredis's: a server that announces 2**31 elements has it make room for them, and give that back, for eleven seconds under the
        # interpreter's lock. This one reads an answer of ours in 4.9 to 7.2 µs, hiredis in 4.4.
        "parser_class": _extras.load("redis.connection")._RESP2Parser,  # noqa: SLF001 - it has no other name
        "db": address.db,
        "username": address.username,
        "password": address.password,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "protocol": 2,
    }
    made = None
    try:
        if address.kind == "unix":
            made = redis.UnixDomainSocketConnection(path=address.path, **options)
        else:
            name, port = host or (_master(address, timeout_s) if address.kind == "sentinel" else address.hosts[0])
            kind = redis.Connection if address.tls is None else redis.SSLConnection
            made = kind(host=name, port=port, **options, **(address.tls or {}))
        made.connect()
        return Connection(made)
    except Exception as error:  # noqa: BLE001 - whatever redis-py raises is said in our words
        if made is not None:
            made.disconnect()  # redis-py does so after errors of its own alone
        trouble = server_error(error)
        raise trouble if trouble.answered else _unreachable() from None


def _unreachable(why: str = "because it cannot be reached") -> ServerError:
    return ServerError(why, "unreachable")


def _master(address: Address, timeout_s: float) -> Host:
    """Return where the master is that the sentinels name."""
    options = {
        "username": address.sentinel_username,
        "password": address.sentinel_password,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "protocol": 2,
        "retry": _extras.load("redis.retry").Retry(_extras.load("redis.backoff").NoBackoff(), 0),
        **({} if address.tls is None else {"ssl": True, **address.tls}),
    }
    sentinel = _extras.load("redis.sentinel").Sentinel(address.hosts, sentinel_kwargs=options)
    try:
        host, port = sentinel.discover_master(address.service)
        return str(host), int(port)
    finally:
        for each in sentinel.sentinels:
            each.close()


def slot_of(key: str) -> int:
    """Return the slot of a Cluster that a key belongs to."""
    return int(_extras.load("redis.crc").key_slot(key.encode()))


# -- a server that does not answer -----------------------------------------------------------------------------------

Verdict = Literal["ask", "refuse", "probe"]

_FAILURES: Final = 3
_FIRST_PAUSE_NS: Final = 250_000_000
_LONGEST_PAUSE_NS: Final = 10_000_000_000


class Breaker:
    """Count failures in a row: after three of them nothing is asked, except for one probe after each pause.

    A pause is a quarter of a second at first, and twice as long after each probe that fails, up to ten seconds. There is none before the
    first probe of a server that was `late`: it lives, and is busy, and what that probe finds is worth waiting for. Any answer closes it.
    """

    __slots__ = ("_clock", "_failures", "_lock", "_pause_ns", "_probe_at_ns", "_probing", "is_worth_waiting")

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = SystemClock() if clock is None else clock
        self.reset()

    def reset(self) -> None:
        """Start anew, as in a forked child."""
        self._lock = threading.RLock()
        self._failures = 0
        self._pause_ns = _FIRST_PAUSE_NS
        self._probe_at_ns = 0
        self._probing = False
        self.is_worth_waiting = False

    @property
    def is_open(self) -> bool:
        """Whether the store is not asked."""
        return self._failures >= _FAILURES

    def look(self) -> Verdict:
        """Say what may be done now; whoever is told to probe says afterwards what came of it, by `succeeded` or `failed`."""
        with self._lock:
            if self._failures < _FAILURES:
                return "ask"
            if self._probing or self._clock.monotonic_ns() < self._probe_at_ns:
                return "refuse"
            self._probing = True
            return "probe"

    def succeeded(self) -> bool:
        """Take note of an answer; True when that is the first after it was open."""
        with self._lock:
            was_open = self.is_open
            self._failures = 0
            self._probing = self.is_worth_waiting = False
            self._pause_ns = _FIRST_PAUSE_NS
            return was_open

    def failed(self, *, probe: bool = False, late: bool = False) -> bool:
        """Take note that there was no answer; True when that opened it. Only a probe's failure makes the pause longer."""
        with self._lock:
            if self.is_open and not probe:
                return False  # asked before it opened
            if probe and not self._probing:
                return False  # somebody else was answered meanwhile
            was_open = self.is_open
            self._failures = _FAILURES if probe else self._failures + 1
            if probe:
                self._probing = False
                self._pause_ns = min(self._pause_ns * 2, _LONGEST_PAUSE_NS)
            if self.is_open:
                self.is_worth_waiting = late and not probe
                self._probe_at_ns = self._clock.monotonic_ns() + (0 if self.is_worth_waiting else self._pause_ns)
            return self.is_open and not was_open


# -- one server ---------------------------------------------------------------------------------------------------


class Turn(Sleeper):
    """Wait, sync or async, for a connection that another thread or task hands over, or for the news that there is none."""

    __slots__ = ("full", "outcome")

    def __init__(self, *, full: bool) -> None:
        super().__init__()
        self.full = full
        self.outcome: Connection | ServerError | None = None

    def block(self, timeout_s: float | None) -> None:
        """Wait on this thread, be it an event loop's: the wait is short, and what is handed over comes from a thread."""
        self._gate.acquire(timeout=max(timeout_s or 0.0, 0.0))


class Server:
    """Keep the connections to one server, lend each to one caller at a time, and stop asking the server when it is silent.

    It is the first of `hosts` that can be reached. `lost` is called when it stays silent.
    """

    def __init__(
        self, address: Address, hosts: Callable[[], Iterable[Host | None]], *, clock: Clock | None, lost: Callable[[], object]
    ) -> None:
        self._address = address
        self._hosts = hosts
        self._lost = lost
        self.breaker: Final = Breaker(clock)
        self._lock = threading.RLock()
        self._idle: deque[Connection] = deque()
        self._open: set[Connection] = set()
        self._opening = 0
        self._turns: deque[Turn] = deque()
        self._closed = False

    def run(self, script: Script, rest: Sequence[Any], until: float, *, asking: bool) -> Flow[Any]:
        """Run a script over a connection that is lent for it; `asking` is what a Cluster wants said of a slot that is moving."""
        connection, until = yield from self.lend(until)
        try:
            if asking:
                yield from connection.ask(("ASKING",), until)
            try:
                answer = yield from connection.ask(("EVALSHA", script.sha, *rest), until)
            except ServerError as trouble:
                if trouble.kind != "no_script":
                    raise
                if asking:  # it holds for one command
                    yield from connection.ask(("ASKING",), until)
                answer = yield from connection.ask(("EVAL", script.source, *rest), until)
        except ServerError as trouble:
            self.give_back(connection, trouble)
            raise
        except BaseException:  # cancelled: the answer is still to come, and must not be the next one's
            self.drop(connection)
            raise
        self.give_back(connection)
        return answer

    def lend(self, until: float) -> Flow[tuple[Connection, float]]:
        """Return a connection, an idle one or one that is opened or given back meanwhile, and until when to use it.

        ServerError when there is none in time, or the server is not asked now. Where a task finds all of them lent, `until` moves on:
        that is not the server's doing, and ends when the server is given up. It moves on, too, once a server that was late answers again.
        """
        verdict = self.breaker.look()
        if verdict != "ask":
            if verdict == "probe" and not start_thread(self._probe):
                self.breaker.failed(probe=True)
            if not self.breaker.is_worth_waiting:
                raise _given_up()
            found: tuple[Connection, float] = yield Step(partial(self._await_probe, until), partial(self._await_probe_in_task, until))
            return found
        self._closed = False
        try:
            return self._idle.pop(), until
        except IndexError:
            pass
        lent: tuple[Connection, float] = yield Step(partial(self._wait_in_thread, until), partial(self._wait_in_task, until))
        return lent

    def give_back(self, connection: Connection, trouble: ServerError | None = None) -> None:
        """Take back a connection that has brought an answer, or trouble."""
        if trouble is None or (trouble.answered and not trouble.ended):
            self.breaker.succeeded()
            self._hand_over(connection)
            return
        self.drop(connection)
        if trouble.kind not in _TRIED_AGAIN and not trouble.answered:
            self.failed(trouble)

    def drop(self, connection: Connection) -> None:
        """Close a connection; whoever waits for one gets another."""
        self._forget(connection)
        with self._lock:
            wanted = bool(self._turns)
            self._opening += wanted
        if wanted:
            self._open_beside()

    def failed(self, trouble: ServerError) -> None:
        """Take note of trouble; nobody goes on waiting for a server that is given up.

        One that does not let this user in, from Redis 8 on when it is connected to, is not given up: each call is to say so.
        """
        if not trouble.is_login and self.breaker.failed(late=trouble.kind == "late"):
            self._send_away(trouble)

    def _send_away(self, trouble: ServerError) -> None:
        while self._turns:
            self._hand_over(trouble)

    def close(self) -> None:
        """Close what nobody uses, and what is being opened or in use as soon as it comes back; until somebody asks again."""
        self._closed = True
        while self._idle:
            with contextlib.suppress(IndexError):
                self._forget(self._idle.pop())

    def disown(self) -> None:
        """Close, in a forked child, what the parent had open; no I/O, and no lock that the parent may have held."""
        for connection in tuple(self._open):
            with contextlib.suppress(Exception):
                connection.close()

    # -- opening and handing over ---------------------------------------------------------------------------------

    def _connect(self) -> Connection:
        connection = connect(self._address, self._hosts(), _OPENING_S)
        with self._lock:
            self._open.add(connection)
        return connection

    def _forget(self, connection: Connection) -> None:
        with self._lock:
            self._open.discard(connection)
        connection.close()

    def _open_beside(self) -> None:
        """Have a thread open a connection for whoever waits; `_opening` counts it already."""
        if not start_thread(self._open_one):
            self._opened(_unreachable(_NO_THREAD))

    def _open_one(self) -> None:
        try:
            outcome: Connection | ServerError = self._connect()
        except Exception as error:  # noqa: BLE001 - it is the waiting one's to raise
            outcome = server_error(error)
        self._opened(outcome)

    def _opened(self, outcome: Connection | ServerError) -> None:
        with self._lock:
            self._opening -= 1
        self._hand_over(outcome)

    def _hand_over(self, outcome: Connection | ServerError) -> None:
        """Give a connection, or the news that there is none, to whoever waits first; keep a connection that nobody waits for."""
        while True:
            with self._lock:
                turn = self._turns.popleft() if self._turns else None
                if turn is None:
                    keeps = len(self._idle) < MOST_FOR_TASKS and not self._closed
                    if keeps and isinstance(outcome, Connection):
                        self._idle.append(outcome)
                    break
                turn.outcome = outcome
            if turn.wake() or isinstance(outcome, ServerError):
                return
            with self._lock:
                turn.outcome = None  # its event loop is gone: it will never know
        if isinstance(outcome, Connection) and not keeps:
            self._forget(outcome)

    @contextlib.contextmanager
    def _standing(self, *, task: bool, opens: bool = True) -> Generator[Turn]:
        """Stand in line for a connection, and have a thread open one, unless tasks have all that there may be."""
        with self._lock:
            turn = Turn(full=not opens or (task and len(self._open) + self._opening >= MOST_FOR_TASKS))
            if self._idle and (task or not opens):  # given back meanwhile
                turn.outcome, turn.full = self._idle.pop(), True
                turn.wake()
            elif task:
                self._turns.append(turn)
            else:
                self._turns.appendleft(turn)  # before all tasks: it may be what keeps their loop from going on
            self._opening += not turn.full
        try:
            if not turn.full:
                self._open_beside()
            yield turn
        finally:
            with self._lock:
                with contextlib.suppress(ValueError):
                    self._turns.remove(turn)
                left, turn.outcome = turn.outcome, None
            if isinstance(left, Connection):
                self._hand_over(left)

    def _wait_in_thread(self, until: float) -> tuple[Connection, float]:
        with self._standing(task=False) as turn:
            turn.block(until - time.monotonic())
            return self._take(turn), until

    async def _wait_in_task(self, until: float) -> tuple[Connection, float]:
        left_s = until - time.monotonic()
        with self._standing(task=True) as turn:
            await turn.wait(_LONGEST_QUEUE_S if turn.full else left_s)
            return self._take(turn), time.monotonic() + left_s if turn.full else until

    def _await_probe(self, until: float) -> tuple[Connection, float]:
        """Wait for the connection over which a server that was late answers again, or for another that is given back."""
        left_s = until - time.monotonic()
        with self._standing(task=False, opens=False) as turn:
            turn.block(left_s)
            return self._taken(turn), time.monotonic() + left_s

    async def _await_probe_in_task(self, until: float) -> tuple[Connection, float]:
        left_s = until - time.monotonic()
        with self._standing(task=True, opens=False) as turn:
            await turn.wait(left_s)
            return self._taken(turn), time.monotonic() + left_s

    def _taken(self, turn: Turn) -> Connection:
        with self._lock:
            outcome, turn.outcome = turn.outcome, None
        if isinstance(outcome, Connection):
            return outcome
        raise _given_up()

    def _take(self, turn: Turn) -> Connection:
        with self._lock:
            outcome, turn.outcome = turn.outcome, None
        if isinstance(outcome, Connection):
            return outcome
        trouble = outcome or _late()
        self.failed(trouble)
        raise trouble

    def _probe(self) -> None:
        """Find out whether it answers again; it does, too, where it says that it does not let this user in: calls are to be told so."""
        try:
            connection = self._connect()
        except Exception as error:  # noqa: BLE001 - whatever it is: not yet
            answers = server_error(error).is_login
        else:
            answers = self._answers(connection)
        if answers:
            self.breaker.succeeded()
        else:
            self.breaker.failed(probe=True)
            if self.breaker.is_open:  # else it answered somebody else meanwhile, and who waits has a connection to come
                self._send_away(_given_up())
            self._lost()

    def _answers(self, connection: Connection) -> bool:
        """Whether it answers over a connection that nobody uses yet."""
        try:
            run_sync(connection.ask(("PING",), time.monotonic() + _OPENING_S))
        except ServerError as trouble:
            if not trouble.answered:
                self._forget(connection)
                return False
        self._hand_over(connection)
        return True


def start_thread(act: Callable[[], object]) -> bool:
    """Do it in a daemon thread, in nobody's context; return False, and it is not done, where there can be no more threads.

    It is not done by the caller then: what takes seconds is no part of a call.
    """
    thread = threading.Thread(target=act, name="ravi-ledger-redis", daemon=True)
    try:
        with without_signals():
            contextvars.Context().run(thread.start)
    except RuntimeError:
        return False
    return True


# -- all servers --------------------------------------------------------------------------------------------------

_LOST: Final = (
    "It was emptied, or another one answers: begin a new run, or have a session's, a tenant's or the process's own limit counted anew by "
    "`ravi-otel ledger accept-loss`."
)
_LOGIN: Final = "Check the user and the password in its URL, and what the server allows that user."
_ANSWERED: Final = "It runs, and does not take what it is asked: check the URL, such as its database, and the server's settings."
_MOVING: Final = "It is a Cluster's doing, and ends when all of it is there."
_FOREIGN: Final = "Something else writes there: give the counters a namespace, a database or a server of their own."


class RedisClient:
    """The way to one store. `timeout_s` bounds what a call adds when the store does not answer; None: as the URL says, else 50 ms.

    The first call of a process opens the connection, and may take a second (`FIRST_S`).
    After three failures in a row nothing is asked, and a call fails at once, until a probe in the background is answered. Where the server
    was late, and not out of reach, the first probe is made at once, and calls wait for its answer as long as they would for their own.
    A command that a dropped connection may have lost is sent once more: each has an operation's id.
    """

    def __init__(self, url: str, *, timeout_s: float | None = None, clock: Clock | None = None) -> None:
        self.address: Final = read(url)
        prepare(self.address)
        self.timeout_s: Final = self.address.timeout_s if timeout_s is None else timeout_s
        self._clock = clock
        self._renew()

    def _renew(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._servers: dict[Host | None, Server] = {}
        self._slots: dict[int, Host] = {}
        self._met = False

    @property
    def clustered(self) -> bool:
        """Whether keys of one call must share a slot."""
        return self.address.kind == "cluster"

    @property
    def failing(self) -> bool:
        """Whether the store, or a server of it, is not asked now."""
        return any(server.breaker.is_open for server in tuple(self._servers.values()))

    def sentence(self, error: StoreError, what: str = "the shared ledger") -> str:
        """Return what is wrong with the store, and the way out; no secret is in it."""
        return f"{what} {self.address.shown} cannot be used, {error.why}. {self._way_out(error)}"

    def _way_out(self, error: StoreError) -> str:
        if error.reason == "store_lost":
            return _LOST
        if not isinstance(error, ServerError):
            return _FOREIGN
        if error.kind == "try_again":
            return _MOVING
        if error.kind == "refused":
            return _LOGIN if error.is_login else _ANSWERED
        what = "" if self.address.tls is None else ", and speaks TLS there"
        what += ", and is a Cluster's" if self.clustered else ""
        return f"See that the server runs, can be reached{what}." if what else "See that the server runs and can be reached."

    def close(self) -> None:
        """Close all connections; a later call opens its own."""
        for server in tuple(self._servers.values()):
            server.close()

    def reset_after_fork(self) -> None:
        """Start anew in a forked child; the parent's connections stay the parent's. No I/O."""
        servers = tuple(self._servers.values())
        self._renew()
        for server in servers:
            server.disown()

    # -- one call -------------------------------------------------------------------------------------------------

    def call(self, script: Script, keys: Sequence[str], args: Sequence[str | bytes | int], *, first: bool = True) -> Flow[Any]:
        """Run a script; return what it returned (bytes, int, None or a list of these), or raise StoreError.

        A process's first call connects, logs in and brings the script along: it has more time than a round trip, once,
        unless it is not to count as the `first`.
        """
        if self._pid != os.getpid():  # behind Python's back
            self.reset_after_fork()
        return self._call(script, keys, args, first=first and not self._met)

    def _call(self, script: Script, keys: Sequence[str], args: Sequence[str | bytes | int], *, first: bool) -> Flow[Any]:
        until = time.monotonic() + (max(self.timeout_s, FIRST_S) if first else self.timeout_s)
        host = self._slots.get(slot_of(keys[0])) if self.clustered else None
        asking, sent, tries, redirects = False, False, 0, 0
        while True:
            server = self._server(host)
            try:
                answer = yield from server.run(script, [len(keys), *keys, *args], until, asking=asking)
            except ServerError as trouble:
                asking = trouble.kind == "ask"
                trouble.sent = sent = sent or trouble.kind not in _UNSENT
                if trouble.redirect is not None and redirects < _MOST_REDIRECTS:
                    redirects += 1
                    host = trouble.redirect
                    if not asking:
                        self._slots[slot_of(keys[0])] = host
                    continue
                tries += 1
                if trouble.kind in _TRIED_AGAIN and tries < _MOST_TRIES:
                    server.close()
                    continue
                if trouble.kind in _TRIED_AGAIN:
                    server.failed(trouble)
                if not trouble.answered and trouble.kind != "given_up":
                    self._forget_slots(host)
                self._met |= first  # it had its time
                raise
            else:
                self._met |= first
                return answer

    # -- servers --------------------------------------------------------------------------------------------------

    def _server(self, host: Host | None) -> Server:
        server = self._servers.get(host)
        if server is None:
            with self._lock:
                made = Server(self.address, partial(self._hosts, host), clock=self._clock, lost=partial(self._forget_slots, host))
                server = self._servers.setdefault(host, made)
        return server

    def _hosts(self, host: Host | None) -> list[Host | None]:
        """Return where a server may be; of a Cluster anyone will do that the URL names or an answer has named."""
        if host is not None or not self.clustered:
            return [host]
        return [*self.address.hosts, *(each for each in tuple(self._servers) if each is not None)]

    def _forget_slots(self, host: Host | None) -> None:
        """Ask anew who keeps what this server kept: another one may keep it now."""
        self._slots = {slot: each for slot, each in self._slots.items() if each != host}
