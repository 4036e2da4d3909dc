"""Go on with the caller's run in a service that is asked over WSGI."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, Final, ParamSpec, TypeVar, cast

from opentelemetry import context as otel_context

from ravi_otel._flow import run_sync
from ravi_otel._runtime.scopes import Limits, read_limits, scope_name
from ravi_otel.carrier._continue import ContinuedRun, continue_run
from ravi_otel.carrier._lending import RETURN_HEADER
from ravi_otel.hooks._listeners import swallow

P = ParamSpec("P")
R = TypeVar("R")

Environ = dict[str, Any]
Headers = list[tuple[str, str]]
App = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]

_PREFIX: Final = "HTTP_"
_READ: Final = (list, tuple)


class Carried:
    """Run each request in the run that its caller carries on: `app = Carried(app)`.

    As `ravi_otel.carrier.asgi.Carried` does. The run lasts until the body was read and closed, or until the app returns, where the
    body is a list, a tuple, or the server's own wrapper of a file: those are handed on as they are. What was lent and not used goes
    back with the headers of an answer that tells its length, or is a list or a tuple.
    """

    def __init__(self, app: App, *, name: str | None = None, limits: Limits = (), otherwise: Limits | None = None) -> None:
        self.app = app
        self._name = scope_name("Carried(name)", name)
        self._limits = read_limits("Carried(limits)", limits)
        self._otherwise = None if otherwise is None else read_limits("Carried(otherwise)", otherwise)

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Be the app, in a run."""
        headers = [(key[len(_PREFIX) :].replace("_", "-"), value) for key, value in environ.items() if key.startswith(_PREFIX)]
        run = continue_run(
            headers, peer=environ.get("REMOTE_ADDR") or None, name=self._name, limits=self._limits, otherwise=self._otherwise
        )
        inside = _Inside(run)
        try:
            answer = _Answer(run, start_response)
            body = inside(self.app, environ, answer.start)
            whole = isinstance(body, _READ)
            inside(answer.flush, whole=whole)
            wrapper = environ.get("wsgi.file_wrapper")
            if not whole and not (isinstance(wrapper, type) and isinstance(body, wrapper)):
                return (_SizedBody if hasattr(type(body), "__len__") else _Body)(body, inside)
        except BaseException as error:
            inside.leave(error)
            raise
        inside.leave(None)
        return body


class _Inside:
    """Be in the run, on whichever thread asks, and only while it does: nothing of ours is left with a server's thread in between.

    OpenTelemetry's context is the run's own; what else the app sets on the thread stays there, for who is around it.
    """

    __slots__ = ("_here", "_run")

    def __init__(self, run: ContinuedRun) -> None:
        around = otel_context.get_current()
        run.__enter__()
        self._run: ContinuedRun | None = run
        self._here = otel_context.get_current()
        otel_context.attach(around)

    def __call__(self, act: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Do one thing in it."""
        around = otel_context.get_current()
        otel_context.attach(self._here)
        try:
            return act(*args, **kwargs)
        finally:
            self._here = otel_context.get_current()
            otel_context.attach(around)

    def leave(self, error: BaseException | None) -> None:
        """End the run, once; the app's work is done, and nothing of ours changes what became of it."""
        run, self._run = self._run, None
        if run is None:
            return
        try:
            self(run.__exit__, None if error is None else type(error), error, None if error is None else error.__traceback__)
        except Exception as bug:  # noqa: BLE001 - see above
            swallow("carrier.leave", bug)


class _Answer:
    """Begin an answer; its headers wait until the app has returned, where a loan may be given back with them."""

    __slots__ = ("_held", "_returned", "_run", "_start", "_write")

    def __init__(self, run: ContinuedRun, start_response: Callable[..., Any]) -> None:
        self._run = run
        self._start = start_response
        self._held: tuple[str, Headers, tuple[Any, ...]] | None = None
        self._write: Callable[[bytes], object] | None = None
        self._returned = False

    def start(self, status: str, headers: Headers, *exc_info: Any) -> Callable[[bytes], object]:
        """Be the app's `start_response`."""
        if self._held is not None and not any(exc_info):  # a second beginning without an error: the server says what it thinks of that
            self.flush(whole=False)
        if not self._run.lent:
            return self._begin(status, headers, exc_info)
        if any(name.lower() == "content-length" for name, _ in headers):
            return self._begin(status, self._with_return(headers), exc_info)
        if self._returned:  # a generator: it begins when its first piece is asked for
            return self._begin(status, headers, exc_info)
        self._held = (status, headers, exc_info)
        return self._write_at_once

    def flush(self, *, whole: bool) -> None:
        """Send the headers that wait, now that the app has returned; of an answer that is `whole`, with what comes back."""
        self._returned = True
        held, self._held = self._held, None
        if held is not None:
            status, headers, exc_info = held
            self._begin(status, self._with_return(headers) if whole else headers, exc_info)

    def _begin(self, status: str, headers: Headers, exc_info: tuple[Any, ...]) -> Callable[[bytes], object]:
        write: Callable[[bytes], object] = self._start(status, headers, *exc_info)
        self._write = write
        return write

    def _write_at_once(self, data: bytes) -> object:
        """Be what an old app writes by: what it writes is not all."""
        self.flush(whole=False)
        assert self._write is not None
        return self._write(data)

    def _with_return(self, headers: Headers) -> Headers:
        """Return the headers with what comes back of the loan, if anything does."""
        value = run_sync(self._run.give_back())
        return headers if value is None else [*headers, (RETURN_HEADER, value)]


class _Body:
    """Read the app's body in its run, and end that when the server is done."""

    __slots__ = ("_body", "_inside", "_pieces")

    def __init__(self, body: Iterable[bytes], inside: _Inside) -> None:
        self._body = body
        self._inside = inside
        self._pieces: Iterator[bytes] | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return self._inside(self._next)
        except StopIteration:
            raise
        except BaseException as error:
            self._inside.leave(error)
            raise

    def _next(self) -> bytes:
        if self._pieces is None:
            self._pieces = iter(self._body)
        return next(self._pieces)

    def close(self) -> None:
        """End the app's body, and then the run; servers call it in any case, some of them on another thread."""
        close = getattr(self._body, "close", None)
        try:
            if close is not None:
                self._inside(close)
        except BaseException as error:
            self._inside.leave(error)
            raise
        self._inside.leave(None)


class _SizedBody(_Body):
    """A body that tells how many pieces it has: of one, servers measure the length."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(cast("Sized", self._body))
