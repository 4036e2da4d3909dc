"""The HTTP libraries below the clients, httpx and its like: errors, headers, bodies, connections, and the methods of a response.

Only a few headers of an answer are read, for the request's id and the rate limits; none of a request. A server may send back anything, even
the key that it was sent: so a value is kept only if it has the expected shape.

The connection of a request is found by private attributes of the HTTP library's pool (httpcore and its like), and only when a call is
stopped. Where another transport carries the request, while it still connects, and on a connection that several share (HTTP/2), nothing is
done: the call then ends by its own time-outs.
"""

from __future__ import annotations

import gc
import inspect
import re
import socket
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from types import AsyncGeneratorType, FrameType, FunctionType, GeneratorType, MethodType
from typing import Any, Final, cast

from ravi_otel._forksafe import ForkLock
from ravi_otel._instrumentation.formats.fields import class_of, count, get
from ravi_otel._instrumentation.formats.sse import events_of
from ravi_otel._runtime.model_call import SendFailure
from ravi_otel._runtime.patching import Block, awaited_in, called_in
from ravi_otel.hooks._listeners import raise_from_signal
from ravi_otel.policy._usage import Reply

# -- the outcome of an attempt: what was sent and billed, by the client's exception --------------------------------------

_NEVER_LEFT: Final = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout"})
"""The class names of errors before anything was sent, which the HTTP libraries have in common."""

_TIMED_OUT: Final = frozenset({"APITimeoutError", "TimeoutException", "TimeoutError"})
_CLIENT_ERRORS: Final = range(400, 500)
_ANSWERED: Final = (("openai", "APIStatusError"), ("anthropic", "APIStatusError"), ("groq", "APIStatusError"))
"""The errors whose status is the provider's: the package and the name of the class."""

_ANSWERED_ATTEMPT: Final = (*_ANSWERED, ("httpx", "HTTPStatusError"), ("httpx2", "HTTPStatusError"))


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    """What became of one attempt."""

    status: int | None
    error_type: str | None
    sent: bool


def failure_of(error: BaseException, *, built: object, seen: Reply | None) -> SendFailure:
    """Return how a call failed.

    `built` is the last request the client built, None when there was none; `seen` is the answer when one came and was
    then judged unfit by a parser, which may raise anything: that answer was billed.
    """
    status = None if seen is not None else _status(error, _ANSWERED)
    return SendFailure(
        error_type=type(error).__qualname__,
        sent=built is not None and (seen is not None or not _never_left(error, built)),
        billed=status not in _CLIENT_ERRORS if status is not None else True,
        usage=None if seen is None else seen.usage,
        reply=seen,
        status=status,
    )


def outcome_of(error: BaseException | None, built: object) -> AttemptOutcome:
    """Return how an attempt failed that is about to be retried."""
    if error is None:
        return AttemptOutcome(None, None, sent=True)
    status = _status(error, _ANSWERED_ATTEMPT)
    name = type(error).__qualname__ if status is None else str(status)  # not the class, which is private to the client
    return AttemptOutcome(status, name, sent=not _never_left(error, built))


def is_timeout(error: BaseException) -> bool:
    """Whether an error, or the reason that it has, is a time-out of the client or of its HTTP library."""
    return any(cls.__name__ in _TIMED_OUT for one in (error, get(error, "reason")) for cls in type(one).__mro__)


def _status(error: BaseException, believed: Sequence[tuple[str, str]]) -> int | None:
    if not any((cls.__module__.partition(".")[0], cls.__name__) in believed for cls in type(error).__mro__):
        return None
    return count(get(error, "status_code")) or count(get(get(error, "response"), "status_code"))


def _never_left(error: BaseException, built: object) -> bool:
    """Whether no connection was made for the request paid for last; an unpaid one, by a redirect, follows an answer."""
    for one in (error, error.__cause__):
        if not _NEVER_LEFT.isdisjoint(cls.__name__ for cls in type(one).__mro__):
            failing = get(one, "request")
            return failing is None or failing is built
    return False


# -- headers ------------------------------------------------------------------------------------------------------------

_MOST_BYTES: Final = 80
_MOST_DIGITS: Final = 15
_ID: Final = re.compile(
    rb"req_[0-9A-Za-z_]{1,64}"
    rb"|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"  # a UUID
    rb"|[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}"  # a random one without dashes; other 32 digits are some hosts' keys
    rb"|[0-7][0-9A-HJKMNP-TV-Z]{25}"  # a ULID
)
_AMOUNT: Final = re.compile(
    rb"\d{1,15}(?:\.\d{1,9})?"
    rb"|(?:\d{1,9}(?:\.\d{1,9})?(?:ms|us|ns|d|h|m|s)){1,5}"
    rb"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)"
    rb"|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) \d{4} \d\d:\d\d:\d\d GMT"
)
_REQUEST_ID: Final = ""
_READ: Final = dict.fromkeys((b"x-request-id", b"request-id", b"apim-request-id", b"x-amzn-requestid"), _REQUEST_ID) | {
    name.encode(): name
    for name in (
        *(f"x-ratelimit-{what}-{of}" for what in ("limit", "remaining", "reset") for of in ("requests", "tokens")),
        *(
            f"anthropic-ratelimit-{of}-{what}"
            for what in ("limit", "remaining", "reset")
            for of in ("requests", "tokens", "input-tokens", "output-tokens")
        ),
        "retry-after",
        "retry-after-ms",
    )
}
"""The headers that are read, with the names of those that are amounts."""


def headers_of_error(error: BaseException | None) -> tuple[str | None, dict[str, str]]:
    """Return the request id and rate limits of the answer behind a client's error, if there was one."""
    response = get(error, "response")
    headers = get(response, "headers")
    return (None, {}) if getattr(headers, "raw", None) is None else read_headers(headers)


def read_headers(headers: Any) -> tuple[str | None, dict[str, str]]:
    """Return the provider's id of a request, and its rate limits by header name; a value of another shape is left out."""
    found: bytes | None = None
    limits: dict[str, str] = {}
    for raw_name, raw_value in headers.raw:
        limit = _READ.get(raw_name.lower())
        if limit is None:
            continue
        value = raw_value.strip()
        if len(value) > _MOST_BYTES:
            continue
        if limit:
            if (value.isdigit() and len(value) <= _MOST_DIGITS) or _AMOUNT.fullmatch(value):
                limits[limit] = value.decode("ascii")
        elif found is None and _ID.fullmatch(value):
            found = value
    return None if found is None else found.decode("ascii"), limits


# -- a bounded copy of a body, which is read once the program has read the original ------------------------------------

MOST_KEPT: Final = 16 * 1024 * 1024
"""The most bytes of one body, as sent and as decoded; the usage of a longer one is unknown."""

_MOST_MARKS: Final = 200_000
"""The most commas and brackets that are parsed at once: each makes a value, and the program waits meanwhile."""

_MOST_EVENTS: Final = 10_000
_MOST_READ: Final = 4 * 1024 * 1024
_HEAD: Final = 64 * 1024
_TAILS: Final = (1024 * 1024, 64 * 1024)
_BLANK: Final = re.compile(rb"\r?\n\r?\n|\r\r")

_PIECE: Final = 512
"""How many compressed bytes are decoded at once: a hostile body may grow a hundred thousandfold."""

_DESCRIBING: Final = ("content-type", "content-encoding")


class BodyCopy:
    """The bytes of one response, collected as they pass; without a reference to the response.

    `streamed` means that it is made of server-sent events, `ended` that its reader came to its end. Bodies that are neither
    those nor JSON nor text are not kept.

    What is read is bounded to some tens of milliseconds. JSON has at most 200,000 commas and brackets, or is unknown. Of events
    beyond 4 MiB, 10,000 of them, or as many marks, the first 64 KiB and the last MiB are read (64 KiB where that is as heavy):
    usage comes last, and an estimate is scaled by what was left out.
    """

    __slots__ = ("_ends_itself", "_headers", "_kept", "_kind", "_share", "_size", "_stated", "ended", "streamed")

    def __init__(self, response: Any) -> None:
        self._kind = library_class(response)
        self._headers = {name: value for name in _DESCRIBING if (value := response.headers.get(name)) is not None}
        content_type = self._headers.get("content-type", "").partition(";")[0].strip().lower()
        self.streamed = content_type == "text/event-stream"
        kept = self.streamed or content_type.endswith("json") or content_type.startswith("text/")
        self._kept: list[bytes] | None = [] if kept else None
        self._share = (1, 1)  # how many bytes of events were read, out of how many
        self._ends_itself = content_type.endswith("json")
        self._stated = response.headers.get("content-length")
        self._size = 0
        self.ended = False

    def put(self, content: bytes) -> BodyCopy:
        """Set the whole content, decoded, as the HTTP library keeps it; return itself."""
        self._headers.pop("content-encoding", None)
        self._kept = [content]
        self.ended = True
        return self

    @property
    def whole(self) -> bool:
        """Whether nothing is missing, or reading will show that something is: half a JSON object is invalid."""
        return self.ended or self._ends_itself or self._stated == str(self._size)

    def add(self, data: bytes) -> None:
        """Append some bytes; drop the whole body where it grows too large."""
        if self._kept is None:
            return
        self._size += len(data)
        if self._size > MOST_KEPT:
            self._kept = None
        else:
            self._kept.append(data)

    def content(self) -> bytes:
        """Return the decoded content. Raise ValueError where not all of it was kept, or reading it would take too long."""
        found = b"".join(self._decoded())
        if is_heavy(found):
            raise ValueError("too many values")
        return found

    def events(self) -> Iterator[Any]:
        """Return the JSON of each event, up to the first invalid one; nothing of a body that was not kept, and both ends of a long one."""
        parts: list[bytes] = []
        with suppress(Exception):  # what was decoded until then is used
            parts.extend(self._decoded())
        data = b"".join(parts)
        if len(data) <= _MOST_READ and not is_heavy(data):
            return events_of(data)
        head, tail = data[:_HEAD], b""
        for size in _TAILS:
            tail = data[max(_HEAD, len(data) - size) :]
            if not is_heavy(tail):
                break
        begins = _BLANK.search(tail)  # the event that was cut in two is skipped
        tail = b"" if begins is None else tail[begins.end() :]
        self._share = (len(head) + len(tail), len(data))
        return chain(events_of(head), events_of(tail))

    def scaled(self, reply: Reply) -> Reply:
        """Return the reply with an estimated usage scaled up from the part of the events that was read."""
        usage, (read, size) = reply.usage, self._share
        if usage is None or usage.source != "estimated" or read >= size:
            return reply
        return replace(reply, usage=replace(usage, output_tokens=usage.output_tokens * size // max(1, read)))

    def _decoded(self) -> Iterator[bytes]:
        """Undo the content's encodings by the HTTP library's own decoders. Raise ValueError beyond the bound."""
        if self._kept is None:
            raise ValueError("not kept")
        raw = b"".join(self._kept)
        if "content-encoding" not in self._headers:
            yield raw
            return
        size = 0
        # An iterator, so that nothing is decoded before it is needed.
        pieces = (raw[at : at + _PIECE] for at in range(0, len(raw), _PIECE))
        for data in self._kind(200, headers=self._headers, content=pieces).iter_bytes():
            size += len(data)
            if size > MOST_KEPT:
                raise ValueError("too large")
            yield data


def is_heavy(data: bytes) -> bool:
    """Whether JSON or events take so long to read that a program would wait for it."""
    if data.count(b"data:") > _MOST_EVENTS:
        return True
    return data.count(b",") + data.count(b"[") + data.count(b"{") > _MOST_MARKS


def library_class(response: Any) -> Any:
    """Return the HTTP library's own class of a response: a subclass may have another constructor."""
    for cls in class_of(response).__mro__:
        if cls.__name__ == "Response" and cls.__module__.startswith("httpx"):
            return cls
    return class_of(response)


def content_of(response: Any) -> BodyCopy | None:
    """Return the body of a response that was read completely, which the HTTP library keeps; None if it was not."""
    try:
        return BodyCopy(response).put(response.content)
    except Exception as error:  # noqa: BLE001 - not read
        raise_from_signal(error)
        return None


# -- connections: shutting one down wakes the thread that reads from it -----------------------------------------------

_HTTP_2: Final = (b"HTTP/2", b"HTTP/2.0")
_LONGEST_WAIT_S: Final = 0.1
_DEEPEST: Final = 4
"""The deepest nesting: a connection, a tunnel in it, and the HTTP connection in that."""

_gate: Final = ForkLock()
"""Keeps a connection out of its pool, where others could take it, between being found open and being shut down.

It is reentrant, because a finaliser that closes a response may run anywhere. Nothing blocks while it is held.
"""


def wait_for_shutdown() -> None:
    """Wait until no connection is being shut down; called right before a response is closed."""
    with _gate.own:
        pass


def shut_down_response(response: Any) -> bool:
    """Shut down the connection of an open response, which wakes the thread that reads from it; whether that was done.

    Nothing happens to one that is closed, to one that shares its connection with others (HTTP/2), or where there is no socket.
    """
    with _gate.own:
        try:
            if response.is_closed or response.extensions.get("http_version") in _HTTP_2:
                return False
            found = response.extensions["network_stream"].get_extra_info("socket")
            # By a duplicate: a TLS socket that is itself shut down goes on in plain text.
            twin = socket.fromfd(found.fileno(), found.family, found.type)
        except Exception:  # noqa: BLE001 - another transport, or closed by now: it ends at its next piece
            return False
        with twin, suppress(OSError):
            twin.shutdown(socket.SHUT_RDWR)
            return True
    return False


def may_share_connection(client: Any, request: Any) -> bool:
    """Whether other requests may be on the connection that carries `request` for an HTTP library's client, as over HTTP/2."""
    choose: Any = get(client, "_transport_for_url")
    return callable(choose) and get(get(choose(request.url), "_pool"), "_http2") is True


def shut_down_request(client: Any, request: Any) -> bool:
    """Shut down the connection that carries `request` for `client`; False when it cannot be found.

    The thread that reads there sees the server hang up. The pool's lock is held meanwhile, so that no other request gets the
    connection; the pool may reuse a free one before it has forgotten the request that it carried.
    """
    choose: Any = get(get(client, "_client"), "_transport_for_url")
    pool = get(choose(request.url), "_pool") if callable(choose) else None
    lock = get(get(pool, "_optional_thread_lock"), "_lock")
    if lock is None or not lock.acquire(timeout=_LONGEST_WAIT_S):
        return False
    try:
        connection = _connection_of(request, tuple(get(pool, "_requests") or ()))
        found = None if connection is None else _socket_of(connection)
        if found is None:
            return False
        with suppress(OSError):  # closed by the server already
            socket.socket.shutdown(found, socket.SHUT_RDWR)  # not the TLS socket's method, which drops state that the reader uses
        return True
    finally:
        lock.release()


def _connection_of(request: Any, queued: tuple[Any, ...]) -> Any:
    """Return the connection that carries `request` and nothing else; None once it was answered, and may carry another's by now."""
    waiting = [one for one in queued if get(get(one, "request"), "extensions") is request.extensions]
    connection = get(waiting[0], "connection") if len(waiting) == 1 else None
    if connection is None or sum(get(one, "connection") is connection for one in queued) > 1:
        return None
    is_idle: Any = get(connection, "is_idle")
    return None if callable(is_idle) and is_idle() else connection


def _socket_of(connection: Any) -> Any:
    for _ in range(_DEEPEST):
        if get(connection, "_h2_state") is not None:
            return None
        stream: Any = get(connection, "_network_stream")
        if stream is not None:
            found = stream.get_extra_info("socket")
            return found if isinstance(found, socket.socket) else None
        connection = get(connection, "_connection")
    return None


def close_all(*held: Any) -> None:
    """Close what a cut stream was read from; whatever that raises, it is cut."""
    for each in held:
        with suppress(Exception):
            each.close()


async def close_all_async(*held: Any) -> None:
    """Close what a cut stream was read from; whatever that raises, it is cut."""
    for each in held:
        with suppress(Exception):
            await each.aclose()


# -- methods of a response, replaced and restored; references to a response, and the stack of a call ------------------

_Args = tuple[Any, ...]
_Kwargs = dict[str, Any]
_TRAITS: Final = ("__name__", "__qualname__", "__doc__", "__module__")
_STATE: Final = "__getstate__"
_MOST_FRAMES: Final = 100
_LOCKING: Final = (
    *(
        "ravi_otel._enforcement",
        "ravi_otel.hooks",
        "ravi_otel._local",
        "ravi_otel._pricing",
        "ravi_otel._runtime.model_call",
        "ravi_otel._telemetry",
    ),
    *("opentelemetry.context", "opentelemetry.exporter", "opentelemetry.metrics", "opentelemetry.sdk", "opentelemetry.trace"),
)
"""Modules that may hold locks while they run, and run none of the program's code meanwhile."""


def replace_method(response: Any, name: str, ours: Any) -> None:
    """Replace one method of a response by a function of ours, which looks like it and refers to the response as it does."""
    own, method = _attributes(response), getattr(response, name)
    ours.ravi_original = own.get(name)
    ours.__self__, ours.__wrapped__ = response, method
    for trait in _TRAITS:
        if isinstance(found := getattr(method, trait, None), str):
            setattr(ours, trait, found)
    setattr(response, name, ours)
    if _STATE not in own:
        setattr(response, _STATE, MethodType(_state, response))


def _state(response: Any) -> Any:
    """Return the state for a copy or a pickle: without our functions, which are bound to the original."""
    found: Any = getattr(class_of(response), _STATE, None)  # none of an older Python's objects
    state: Any = dict(_attributes(response)) if found is None else found(response)
    if class_of(state) is tuple:  # with the values of slots
        return tuple(map(_without_us, state))
    return _without_us(state)


def _without_us(state: Any) -> Any:
    if not isinstance(state, dict):
        return state
    kept: dict[str, Any] = {}
    for name, value in cast("dict[str, Any]", state).items():
        beneath = value
        while _is_ours(beneath):
            beneath = getattr(beneath, "ravi_original", None)
        if beneath is not None or value is None:
            kept[name] = beneath
    return kept


def _is_ours(value: Any) -> bool:
    kind = class_of(value)
    if kind is FunctionType:
        return hasattr(value, "ravi_original")
    return kind is MethodType and value.__func__ is _state


def surround_method(response: Any, name: str, block_of: Callable[[Any, _Args, _Kwargs], Block | None], *, awaits: bool) -> None:
    """Run one method of a response inside a block, as `patching.wrapper_of` does."""
    method = getattr(response, name)
    if awaits:

        async def surrounded_async(*args: Any, **kwargs: Any) -> Any:
            return await awaited_in(block_of(response, args, kwargs), method, args, kwargs)

        replace_method(response, name, surrounded_async)
    else:

        def surrounded(*args: Any, **kwargs: Any) -> Any:
            return called_in(block_of(response, args, kwargs), method, args, kwargs)

        replace_method(response, name, surrounded)


def restore_methods(response: Any, *names: str) -> None:
    """Restore the original methods, unless somebody has replaced ours by now."""
    own = _attributes(response)
    for name in names:
        ours: Any = own.get(name)
        if _is_ours(ours):
            if ours.ravi_original is None:
                del own[name]
            else:
                own[name] = ours.ravi_original
    values = list(own.values())
    if _is_ours(own.get(_STATE)) and (FunctionType not in map(type, values) or sum(map(_is_ours, values)) == 1):  # nothing else is ours
        del own[_STATE]


def _attributes(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", vars(value))


def interrupts_lock_holder() -> bool:
    """Whether this close of a stream may have interrupted code that holds a lock which settling needs.

    A finaliser runs wherever the collector happens to start, and only the stack shows what it has interrupted.
    """
    frame: FrameType | None = inspect.currentframe()
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return False
        if frame.f_code.co_name == "__del__" or str(frame.f_globals.get("__name__", "")).startswith(_LOCKING):
            return True
        frame = frame.f_back
    return False


def name_like(ours: Any, source: Any) -> Any:
    """Rename a generator of ours like the one that it reads, for its representation and warnings; return it."""
    if isinstance(source, (GeneratorType, AsyncGeneratorType)):
        ours.__name__, ours.__qualname__ = source.__name__, source.__qualname__
    return ours


def held_by_others(held: weakref.ref[Any], ours: int) -> bool:
    """Whether anybody besides us and the HTTP library refers to an object, or to a function of ours that replaces one of its methods.

    `ours` is the number of references that those functions added. A momentary reference counts, too: check again later.
    """
    value = held()
    if value is None:
        return False
    before = [weakref.ref(each) for each in _attributes(value).values() if _is_ours(each)]
    if any(_references(each) > 1 for each in before):  # one is the object's own
        return True
    body = getattr(value, "stream", None)
    inside = ours + (references_from(body, value) if hasattr(body, "__dict__") else 0)
    del value
    return _references(held) > inside


def held_only_by_itself(held: weakref.ref[Any]) -> bool:
    """Whether only its own generators refer to an object, and only the object and each other to these."""
    value = held()
    if value is None:
        return True
    found, inside = {id(value): held}, Counter[int]()
    waiting: list[Any] = _of_its_own(_attributes(value).values(), value)
    while waiting:
        one = waiting.pop()
        inside[id(one)] += 1
        if id(one) not in found:
            found[id(one)] = weakref.ref(one)
            parts = gc.get_referents(one)
            inside[id(value)] += sum(part is value for part in parts)
            waiting += _of_its_own(parts, value)
            del parts
        del one
    del value
    return all(_references(each) <= inside[at] for at, each in found.items())


def _of_its_own(parts: Iterable[Any], value: Any) -> list[Any]:
    """Return those objects that are generators with this value among their variables, as a method's `self` is."""
    return [
        part
        for part in parts
        if isinstance(part, (GeneratorType, AsyncGeneratorType)) and any(each is value for each in gc.get_referents(part))
    ]


def references_from(holder: Any, value: Any) -> int:
    """Return how many of an object's attributes are this value."""
    return sum(each is value for each in list(_attributes(holder).values()))


def _references(held: weakref.ref[Any]) -> int:
    return _counted(held) - _OF_COUNTING


def _counted(held: weakref.ref[Any]) -> int:
    value = held()
    return sys.getrefcount(value)


class _Held:
    """An object that supports weak references."""


_ONE: Final = [_Held()]
_OF_COUNTING: Final = _counted(weakref.ref(_ONE[0])) - 1
"""How many references the counting itself adds, which differs between versions of Python."""


def locals_of(generator: Any) -> dict[str, Any]:
    """Return the local variables of a generator; none of one that has finished, or of another object."""
    frame: FrameType | None = getattr(generator, "gi_frame", None) or getattr(generator, "ag_frame", None)
    return {} if frame is None else dict(frame.f_locals)


def is_running(held: weakref.ref[Any] | None) -> bool:
    """Whether a generator is being read at this moment, by whatever thread or task."""
    iterator = None if held is None else held()
    if isinstance(iterator, GeneratorType):
        return iterator.gi_running
    return isinstance(iterator, AsyncGeneratorType) and iterator.ag_running
