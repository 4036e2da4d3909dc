"""Send over HTTP, to where and how the stock exporter would: it is asked once, and never sends.

The stock exporter reads the OTEL_* variables. It is given a session that catches its first request, an empty one; from
that come the URL, headers, compression, certificates, proxies and timeout, by nothing but public interfaces. What it does not do is
ours: one deadline for the whole answer, a bound on its size, no redirect, and the verdict.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import zlib
from http.cookiejar import CookieJar
from importlib.metadata import entry_points
from typing import Any, Final

from ravi_otel._extras import load
from ravi_otel.telemetry.export.connections import POOLS, Breaker
from ravi_otel.telemetry.export.quiet import listened, say_of, unlogged, untold
from ravi_otel.telemetry.export.wire import Answer, rejected, retry_after_s, timeout_s

_AGAIN: Final = frozenset({429, 502, 503, 504})
_MOST_ANSWER: Final = 64 * 1024
_PROVIDERS: Final = "opentelemetry_otlp_credential_provider"
_MADE_ANEW: Final = frozenset({"content-length", "connection", "accept-encoding"})
_TOO_LARGE: Final = b"too large"
_PAGES: Final = frozenset({"text/html", "application/xhtml+xml"})


class HttpWire:
    """Send requests of one signal; `exporter` makes the stock exporter with a session, `empty` is a batch of nothing."""

    def __init__(self, signal: str, exporter: Any, empty: Any) -> None:
        self._signal = signal
        self._requests: Any = load("requests")
        listened()
        with untold(), unlogged() as warned:  # what is caught never happens, and would be a span of the program's otherwise
            self._session: Any = _session(self._requests, signal)
            caught = _caught(self._requests, self._session, exporter, empty)
        say_of(signal, warned)
        self._url: str = caught.url
        self._how: dict[str, Any] = {name: caught.how.get(name) for name in ("verify", "cert")}
        if isinstance(
            self._session.verify, str
        ):  # a certificate that was named holds; requests itself lets REQUESTS_CA_BUNDLE go before it
            self._how["verify"] = self._session.verify
        self.timeout_s = timeout_s(signal, caught.how.get("timeout"))
        self._headers = {name: value for name, value in caught.headers.items() if name.lower() not in _MADE_ANEW}
        self._headers["Accept-Encoding"] = "identity"
        self._encoding = self._headers.get("Content-Encoding", "").lower()
        lines = sorted(f"{name.lower()}:{value!r}" for name, value in self._headers.items() if name.lower() != "user-agent")
        self.place = hashlib.sha256("\n".join([self._url, *lines]).encode("utf-8", "replace")).hexdigest()[:16]
        self._breaker = Breaker()
        self._mount()

    def send(self, body: bytes, timeout_s: float) -> Answer:
        """Send one request."""
        with unlogged():
            return self._sent(body, timeout_s)

    def _sent(self, body: bytes, timeout_s: float) -> Answer:
        self._breaker.begin()
        try:
            response = self._session.request(
                "POST",
                self._url,
                data=self._compressed(body),
                headers=self._headers,
                timeout=timeout_s,
                allow_redirects=False,
                stream=True,
                **self._how,
            )
        except Exception as error:  # noqa: BLE001 - whatever a session of anybody's raises
            return self._broken(error)
        with response:
            return self._read(response)

    def cut(self) -> None:
        """Break off what is under way: whoever reads or writes gets an error at once."""
        self._breaker.cut()

    def renew(self) -> None:
        """Let go of the connections in a forked child, without a word to the server: they are the parent's."""
        self._breaker.forget()
        self._mount()

    def close(self) -> None:
        """Let go of connections."""
        self._session.close()

    def _mount(self) -> None:
        """Give the session all anew that a request of it takes a lock of."""
        self._session.cookies = _NoCookies()
        adapter: Any = self._requests.adapters.HTTPAdapter(pool_connections=1, pool_maxsize=1, max_retries=0)
        adapter.poolmanager.pool_classes_by_scheme = POOLS
        through = adapter.proxy_manager_for

        def with_our_pools(proxy: str, **options: Any) -> Any:
            manager = through(proxy, **options)
            manager.pool_classes_by_scheme = POOLS
            return manager

        adapter.proxy_manager_for = with_our_pools
        sends = adapter.send

        def nowhere_else(*args: Any, **how: Any) -> Any:
            response = sends(*args, **how)
            response.headers.pop("location", None)  # requests reads and inflates all of a redirect, also of one that it does not follow
            return response

        adapter.send = nowhere_else
        self._session.mount("http://", adapter)
        self._session.mount("https://", adapter)

    def _compressed(self, body: bytes) -> bytes:
        if self._encoding == "gzip":
            return gzip.compress(body, compresslevel=6)
        return zlib.compress(body) if self._encoding == "deflate" else body

    def _broken(self, error: Exception) -> Answer:
        errors = self._requests.exceptions
        if isinstance(error, (errors.InvalidURL, errors.InvalidSchema, errors.MissingSchema, errors.InvalidHeader, errors.URLRequired)):
            return Answer("never", "the endpoint or a header is not valid")
        if self._breaker.has_cut:
            return Answer("later", "the collector did not answer in time")
        if isinstance(error, errors.SSLError):
            return Answer("later", "TLS with the collector failed")
        if isinstance(error, errors.Timeout):
            return Answer("later", "the collector did not answer in time")
        return Answer("later", "the collector cannot be reached")

    def _read(self, response: Any) -> Answer:
        status = int(response.status_code)
        body = b""
        try:
            body = response.raw.read(_MOST_ANSWER, decode_content=False)
        except Exception:  # noqa: BLE001 - the status has come, and it is what counts: a batch acknowledged is not sent again
            self._breaker.forget()
        if 200 <= status < 300:  # noqa: PLR2004 - HTTP's
            if str(response.headers.get("content-type") or "").partition(";")[0].strip().lower() in _PAGES:
                return Answer("never", "a web page was answered, not by a collector")
            return Answer("sent", rejected=rejected(self._signal, body))
        why = f"the collector answered {status}"
        if status in _AGAIN:
            return Answer("later", why, retry_after_s(response.headers.get("retry-after")))
        if status == 413 or (status == 400 and _TOO_LARGE in body):  # noqa: PLR2004 - HTTP's; the collector says 400 in some versions
            return Answer("smaller", why)
        return Answer("never", why)


class _NoCookies(CookieJar):
    """Keep nothing of what a server sets: it would come back to it with each request, and no bound holds for it.

    It takes no lock either. What a forked child copies of an ordinary jar may be locked, by a thread that the child does not have.
    """

    def extract_cookies(self, response: Any, request: Any) -> None:
        """Do nothing."""

    def set_cookie(self, cookie: Any) -> None:
        """Do nothing."""


class _Catcher:
    """Be an adapter that keeps a request and says that all went well."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self.url = ""
        self.headers: dict[str, str] = {}
        self.how: dict[str, Any] = {}

    def send(self, request: Any, **how: Any) -> Any:
        self.url, self.headers, self.how = request.url, dict(request.headers), how
        response = self._response()
        response.status_code, response.request, response.url, response.raw = 200, request, request.url, io.BytesIO()
        return response

    def close(self) -> None:
        pass


def _caught(requests: Any, session: Any, exporter: Any, empty: Any) -> _Catcher:
    catcher = _Catcher(requests.Response)
    session.mount("http://", catcher)
    session.mount("https://", catcher)
    stock = exporter(session=session)
    stock.export(empty)
    if not catcher.url:
        raise ValueError(
            "the endpoint of OTEL_EXPORTER_OTLP_* is no http or https URL, or a header is not valid; give one such as http://localhost:4318"
        )
    return catcher


def _session(requests: Any, signal: str) -> Any:
    """Make a session, or have the credential provider make it that the environment names."""
    names = ("OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER", f"OTEL_PYTHON_EXPORTER_OTLP_HTTP_{signal.upper()}_CREDENTIAL_PROVIDER")
    named = next((found for name in names if (found := os.environ.get(name))), None)
    if named is None:
        return requests.Session()
    for entry in entry_points(group=_PROVIDERS, name=named):
        session = entry.load()()
        if isinstance(session, requests.Session):
            return session
    raise ValueError(f"{names[0]}={named[:64]!r} names no credential provider that gives a requests.Session")
