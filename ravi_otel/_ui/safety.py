"""Keep the page for whoever was given its URL: token, cookie, Host, Origin, and a policy for what a browser may load.

Nothing here knows what is shown. A request passes when its Host is one of ours and it brings the cookie that the printed URL gave; a
change also needs the page's own Origin and the token that only the page can read.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import re
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ravi_otel._files import database_flaw
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks
from ravi_otel.supervisor.approval._queue import current_login

LINK: Final = "/a/"
_LINK_PATHS: Final = (LINK, "/assets/", "/api/links/")
"""What whoever has a link to one request is shown: the page, and that request."""

CHANGE_HEADER: Final = "x-ravi-token"
_LEAST_TOKEN: Final = 16
_MOST_TOKEN: Final = 4_096
_MOST_NAME: Final = 200
_MOST_DIGITS: Final = 12
_MOST_BODY: Final = 1_048_576
_BODY_S: Final = 10.0
_SAFE_METHODS: Final = ("GET", "HEAD")
_OTHER_SITES: Final = ("cross-site", "same-site")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LOCAL: Final = ("127.0.0.1", "localhost", "[::1]")
_PORTS: Final = {"http": 80, "https": 443}
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'"
)
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Headers of every answer, whatever it is."""


@dataclass(frozen=True, slots=True)
class Access:
    """Say who may use the page, and under which names it is reached.

    `token` is what the printed URL carries. `public_url` is where a proxy has it. With `user_header` a change is made by whom that header
    names, on requests from `trusted_proxies` alone; without it, by the user of the operating system.
    """

    port: int
    token: str
    host: str = "127.0.0.1"
    public_url: str | None = None
    read_only: bool = False
    user_header: str | None = None
    trusted_proxies: frozenset[str] = frozenset()

    @property
    def _sites(self) -> list[tuple[str, str, int]]:
        """Return scheme, name and port of each place where it is reached."""
        names = {*_LOCAL, _bracketed(self.host)} - {"0.0.0.0", "[::]"}  # noqa: S104 - every address is no name
        known = urlsplit(self.public_url or "")
        public = [(known.scheme, _bracketed(known.hostname), known.port or _PORTS[known.scheme])] if known.hostname else []
        return [*(("http", name, self.port) for name in names), *public]

    @property
    def hosts(self) -> set[str]:
        """Return what a request may call this page; a browser leaves out the scheme's own port."""
        return {each for scheme, name, port in self._sites for each in (f"{name}:{port}", *([name] if port == _PORTS[scheme] else []))}

    @property
    def origins(self) -> set[str]:
        """Return what a browser calls this page where it sends something."""
        return {f"{scheme}://{name}" + ("" if port == _PORTS[scheme] else f":{port}") for scheme, name, port in self._sites}

    @property
    def url(self) -> str:
        """Return the URL to open, with the token."""
        return f"{self._base}/?{urlencode({'token': self.token})}"

    @property
    def _base(self) -> str:
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else _bracketed(self.host)  # noqa: S104 - the same
        return (self.public_url or f"http://{host}:{self.port}").rstrip("/")

    @property
    def cookie_name(self) -> str:
        """Return the cookie's name: browsers keep cookies by host alone, so that two ports need two."""
        return f"ravi_ui_{self.port}"

    def derived(self, purpose: str) -> str:
        """Return a secret made of the token for one purpose, which does not give the token away."""
        return hmac.new(self.token.encode(), purpose.encode(), hashlib.sha256).hexdigest()

    def link(self, request_id: str, expires_at: float, seal: str) -> str:
        """Return the URL that lets whoever has it decide one request, as it was shown: from here alone without `public_url`."""
        return f"{self._base}{LINK}{self._signed(request_id, int(expires_at), seal)}"

    def is_link(self, given: str, seal: str) -> bool:
        """Whether it was made for exactly this request, and counts still."""
        request_id, expires_at = self.read_link(given)
        return time.time() < expires_at and hmac.compare_digest(given.encode(), self._signed(request_id, expires_at, seal).encode())

    @staticmethod
    def read_link(given: str) -> tuple[str, int]:
        """Return what a link says it is for: the request, and until when it counts; nothing of it is believed yet."""
        request_id, _, rest = given.partition("~")
        until = rest.partition("~")[0]
        return request_id, int(until) if until.isascii() and until.isdigit() and len(until) < _MOST_DIGITS else 0

    def _signed(self, request_id: str, expires_at: int, seal: str) -> str:
        digest = self.derived(f"link {request_id} {expires_at} {seal}")
        return f"{request_id}~{expires_at}~{digest}"

    def is_token(self, given: str) -> bool:
        """Whether it is the token, told in a time that gives nothing away."""
        return hmac.compare_digest(given.encode(), self.token.encode())

    def is_cookie(self, given: str) -> bool:
        """Whether it is the cookie that the token turns into."""
        return hmac.compare_digest(given.encode(), self.derived("cookie").encode())

    def user(self, headers: Headers, peer: str | None) -> str | None:
        """Return who asks: the system's user, or whom a trusted proxy names; None where nobody may say."""
        if self.user_header is None:
            return current_login()
        named = headers.getlist(self.user_header)
        if peer is None or _address(peer) not in self.trusted_proxies or len(named) != 1:
            return None
        try:
            name = named[0].encode("latin-1").decode().strip()
        except UnicodeDecodeError:
            return None
        return name if 0 < len(name) <= _MOST_NAME and name.isprintable() else None


def access(
    *,
    port: int,
    host: str = "127.0.0.1",
    token_file: Path | None = None,
    public_url: str | None = None,
    read_only: bool = False,
    user_header: str | None = None,
    trusted_proxies: Iterable[str] = (),
) -> Access:
    """Return the access that these options ask for; ConfigurationError for what would open the page to others without a word."""
    if not _is_loopback(host) and token_file is None:
        raise ConfigurationError(
            f"--host {checks.show(host)} opens the page to other machines, and needs --token-file FILE with a token that you keep. "
            "Put a proxy with sign-in and TLS in front of it."
        )
    if user_header is not None and _HEADER_NAME.fullmatch(user_header) is None:
        raise ConfigurationError(f"--user-header {checks.show(user_header)} is no name of a header; write one such as X-Forwarded-User.")
    named = list(trusted_proxies)
    if user_header is not None and not named:
        raise ConfigurationError(
            f"--user-header {checks.show(user_header)} is believed from a proxy alone: name that with --trusted-proxy."
        )
    proxies = set[str]()
    for each in named:
        known = _address(each)
        if known is None:
            raise ConfigurationError(f"--trusted-proxy {checks.show(each)} is no address; write one such as 127.0.0.1.")
        proxies.add(known)
    if public_url is not None and not is_site(public_url):
        raise ConfigurationError(
            f"--public-url {checks.show(public_url)} is no address of a site; write one such as https://ravi.example.com."
        )
    token = secrets.token_urlsafe(32) if token_file is None else _read_token(token_file)
    return Access(port, token, host, public_url, read_only, user_header, frozenset(proxies))


def _is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    known = _address(host)
    return host == "localhost" if known is None else ipaddress.ip_address(known).is_loopback


def _address(text: str) -> str | None:
    """Return an address as it is written in one way only; None for what is none."""
    try:
        known = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = known.ipv4_mapped if isinstance(known, ipaddress.IPv6Address) else None
    return str(known if mapped is None else mapped)


def is_site(url: str) -> bool:
    """Whether it names a site and nothing within it."""
    try:
        known = urlsplit(url)
        port = known.port
    except ValueError:
        return False
    if known.scheme not in _PORTS or not known.hostname or port == 0 or known.username is not None:
        return False
    within = known.path not in ("", "/") or known.query or known.fragment
    return not within and url.isascii() and url.isprintable() and " " not in url


_TOKEN_FILE: Final = f"Write a token of at least {_LEAST_TOKEN} characters into a file that you alone may read, and name that."


def _read_token(path: Path) -> str:
    try:
        wrong = database_flaw(path, root_too=True)
        token = "" if wrong is not None else _first_characters(path).strip()
    except OSError as error:
        raise ConfigurationError(
            f"--token-file {checks.show(str(path))} cannot be read: {error.strerror or error}. {_TOKEN_FILE}"
        ) from error
    except ValueError as error:
        raise ConfigurationError(f"--token-file {checks.show(str(path))} cannot be read: it is no text. {_TOKEN_FILE}") from error
    if wrong is not None:
        raise ConfigurationError(f"--token-file {checks.show(str(path))} cannot be used: {wrong}.")
    if not _LEAST_TOKEN <= len(token) <= _MOST_TOKEN or not token.isprintable() or not token.isascii():
        raise ConfigurationError(f"--token-file {checks.show(str(path))} must hold one token of at least {_LEAST_TOKEN} ASCII characters.")
    return token


def _first_characters(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.read(_MOST_TOKEN + 1)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host.lower()


class Guard:
    """Let through what may be let through, and answer the rest with one sentence; an ASGI middleware, so that streams stay streams."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Judge one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no WebSocket is spoken here

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self._judge(scope, Headers(scope=scope))
        await (self._app if refusal is None else refusal)(scope, _bounded(receive), send_safely)

    def _judge(self, scope: Scope, headers: Headers) -> Response | None:
        named = headers.getlist("host")
        if len(named) != 1 or named[0].lower() not in self._access.hosts:
            return _no(421, "This page is not served under that name. Open the URL that `ravi-otel ui` printed, or give it --public-url.")
        arrived = self._by_token(scope)
        if arrived is not None:
            return arrived
        by_link = scope["path"].startswith(_LINK_PATHS)
        if not by_link and not any(self._access.is_cookie(each) for each in _cookies(headers, self._access.cookie_name)):
            return _no(401, "This page needs the URL that `ravi-otel ui` printed when it started, with its token: open that one.")
        if scope["path"].startswith("/api/") and headers.get("sec-fetch-site") in _OTHER_SITES:
            return _no(403, "Another site asks for this in your browser: open the page itself.")
        if scope["method"] in _SAFE_METHODS:
            return None
        return self._change(headers, scope, by_link=by_link)

    def _by_token(self, scope: Scope) -> Response | None:
        """Turn the token of the printed URL into a cookie, and take it out of the address."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == "token"]
        if not given or scope["method"] not in _SAFE_METHODS:
            return None
        if len(given) != 1 or not self._access.is_token(given[0]):
            return _no(403, "That token is wrong. `ravi-otel ui` prints a new URL each time it starts: open that one.")
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        path = "/" + scope["path"].lstrip("/\\")  # and nothing that a browser would take for another site
        answer = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
        secure = (self._access.public_url or "").startswith("https:")
        answer.set_cookie(self._access.cookie_name, self._access.derived("cookie"), path="/", httponly=True, samesite="lax", secure=secure)
        return answer

    def _change(self, headers: Headers, scope: Scope, *, by_link: bool) -> Response | None:
        if self._access.read_only:
            return _no(403, "This page only shows: it was started with --read-only.")
        if headers.getlist("origin") not in ([each] for each in self._access.origins):
            return _no(403, "A change must come from this page itself.")
        if not by_link and not hmac.compare_digest(headers.get(CHANGE_HEADER, "").encode(), self._access.derived("change").encode()):
            return _no(403, "A change must bring this page's token: load the page again.")
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return _no(415, "A change is written as JSON.")
        if self._access.user(headers, peer_of(scope)) is None:
            return _no(403, f"Nobody says who you are: a change needs {self._access.user_header} from a trusted proxy.")
        return None


def _bounded(receive: Receive) -> Receive:
    """Return the same, for a body that is neither longer nor slower than what a page sends."""
    received, until, whole = 0, time.monotonic() + _BODY_S, False

    async def receive_bounded() -> Message:
        nonlocal received, whole
        if whole:  # what is waited for now is that the other end goes
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), max(0.0, until - time.monotonic()))
        except TimeoutError:
            raise HTTPException(408, "What was sent took too long.") from None
        received += len(message.get("body", b""))
        whole = not message.get("more_body", False)
        if received > _MOST_BODY:
            raise HTTPException(413, f"What was sent is longer than {_MOST_BODY:,} bytes.")
        return message

    return receive_bounded


def peer_of(scope: Scope) -> str | None:
    """Return the address that a request came from."""
    client = scope.get("client")
    return None if client is None else str(client[0])


def _cookies(headers: Headers, name: str) -> list[str]:
    pairs = (each.strip().partition("=") for line in headers.getlist("cookie") for each in line.split(";"))
    return [value for known, _, value in pairs if known == name]


def _no(status: int, sentence: str) -> Response:
    return PlainTextResponse(f"{sentence}\n", status)
