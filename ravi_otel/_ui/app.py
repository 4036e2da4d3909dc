"""Serve the page: each route reads one thing or changes one thing; who may is `_safety`'s business."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import socket
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Annotated, Final, cast
from zoneinfo import ZoneInfo

import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from ravi_otel import __version__
from ravi_otel._local.answers import Comparison
from ravi_otel._local.store import Store
from ravi_otel._local.wording import clean
from ravi_otel._ui import api
from ravi_otel._ui.decisions import Inbox, audit
from ravi_otel._ui.live import Feed, SharedBudgets, events
from ravi_otel._ui.safety import Access, Guard, is_site, peer_of
from ravi_otel._ui.stored import MOST_NODES, Archive, names
from ravi_otel.errors import ConfigurationError, RaviError
from ravi_otel.policy import _checks as checks
from ravi_otel.supervisor import ApprovalAnswer, QueueError
from ravi_otel.supervisor.approval._request import LINK, LINK_HOLDER, login_identity, sign_in_identity

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._]+")
_FILES: Final = ("index.html", "app.js", "style.css")
_TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
"""What a browser is told that a file is: what the system says of its name may be anything."""

_NONSENSE: Final = "That is not what is asked for here."
_SAID: Final = {400: _NONSENSE, 404: "There is no such thing to ask for.", 405: "That cannot be asked for in this way."}
_HEAD_S: Final = 10.0
_STOP_S: Final = 1
_MOST_PATH: Final = 400
_LINK_S: Final = 86_400

router = APIRouter()


@dataclass(slots=True)
class Desk:
    """Hold what the routes read: the store, the queue of approvals and the audit logs, and the files of the page.

    `jaeger` is where traces can be looked at, and `ledger` where programs share budgets; None where nobody said.
    """

    access: Access
    store: Path
    inbox: Inbox
    audit: Path
    jaeger: str | None = None
    ledger: str | None = None
    feed: Feed = field(init=False)
    budgets: SharedBudgets = field(init=False)
    files: dict[str, tuple[bytes, str, str]] = field(init=False)

    def __post_init__(self) -> None:
        """Read the page's files once: what is not among them cannot be asked for, whatever a URL says."""
        if self.jaeger is not None and not is_site(self.jaeger):
            raise ConfigurationError(
                f"--jaeger-url {checks.show(self.jaeger)} is no address of a site; write one such as http://127.0.0.1:16686."
            )
        self.jaeger = None if self.jaeger is None else self.jaeger.rstrip("/")
        self.feed = Feed(self.store)
        self.budgets = SharedBudgets(self.ledger, self.audit)
        folder = resources.files("ravi_otel._ui") / "static"
        self.files = {each.name: _file(each.name, each.read_bytes()) for each in folder.iterdir() if each.is_file()}
        missing = [name for name in _FILES if name not in self.files]
        if missing:
            raise ConfigurationError(f"the page is damaged, {missing[0]} is missing: install ravi-otel[ui] again.")

    def stored(self) -> Archive:
        """Return what asks the store that is there; ConfigurationError where there is none yet."""
        return Archive(Store.find(self.store), self.jaeger)


def _file(name: str, content: bytes) -> tuple[bytes, str, str]:
    kind = _TYPES.get(Path(name).suffix, "application/octet-stream")
    return content, kind, f'"{hashlib.sha256(content).hexdigest()[:20]}"'


def _desk(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk


At = Annotated[Desk, Depends(_desk)]


def _archive(desk: At) -> Iterator[Archive]:
    """Yield what asks the store while a request is answered."""
    with desk.stored() as stored:
        yield stored


Kept = Annotated[Archive, Depends(_archive)]


def _who(request: Request, desk: At) -> str:
    """Return who asks; a change that nobody answers for does not come this far."""
    return desk.access.user(request.headers, peer_of(request.scope)) or ""


Who = Annotated[str, Depends(_who)]


def _signed(desk: At, who: Who) -> ApprovalAnswer:
    """Return a yes of whoever asks, with how they were verified: by the proxy, or as the user of the operating system."""
    return ApprovalAnswer(approved=True, who=who, identity=sign_in_identity(who) if desk.access.user_header else login_identity(who))


def _holding(desk: At, who: Who) -> ApprovalAnswer:
    """Return a yes of whoever has a link: nobody knows who that is, unless the proxy has signed them in."""
    if desk.access.user_header:
        return ApprovalAnswer(approved=True, who=who or None, identity=sign_in_identity(who) if who else LINK)
    return ApprovalAnswer(approved=True, who=LINK_HOLDER, identity=LINK)


Signed = Annotated[ApprovalAnswer, Depends(_signed)]
Holding = Annotated[ApprovalAnswer, Depends(_holding)]


@router.get("/api/session")
def session(desk: At, who: Who) -> api.Session:
    """Tell the page who looks, and the token that a change must bring."""
    access = desk.access
    return api.Session(
        user=who or None,
        token=access.derived("change"),
        read_only=access.read_only,
        store=clean(str(desk.store), _MOST_PATH),
        version=__version__,
        zone=_zone(),
    )


def _zone() -> str:
    """Return the name of this machine's time zone, else how far it is from UTC now: a browser knows both."""
    now = datetime.now().astimezone()
    name = (os.environ.get("TZ") or os.path.realpath("/etc/localtime").partition("/zoneinfo/")[2]).lstrip(":")
    with suppress(ValueError, OSError, KeyError):  # no name, or none that is known here
        if ZoneInfo(name).utcoffset(now.replace(tzinfo=None)) == now.utcoffset():
            return name
    return now.isoformat()[-6:]


@router.get("/api/events", response_class=StreamingResponse)
def stream(desk: At) -> StreamingResponse:
    """Send what is open as it changes."""
    headers = {"x-accel-buffering": "no"}  # a proxy is not to gather it
    return StreamingResponse(events(desk.feed, desk.inbox), media_type="text/event-stream", headers=headers)


@router.get("/api/now")
def now(desk: At) -> api.Now:
    """Return what is open."""
    return desk.feed.now(desk.inbox)


@router.post("/api/commands")
def command(desk: At, who: Who, asked: api.Command) -> api.Done:
    """Have a process do something."""
    return desk.feed.do(asked, who)


@router.get("/api/limits")
def limits(desk: At) -> api.Limits:
    """Return every limit that counts now."""
    return desk.feed.limits()


@router.get("/api/limits/try")
def try_limit(desk: At, asked: Annotated[api.Command, Query()]) -> api.Tried:
    """Return what another value of a limit would do, and change nothing."""
    return desk.feed.tried(asked)


@router.get("/api/budgets/try")
def try_budget(desk: At, asked: Annotated[api.BudgetChange, Query()]) -> api.Tried:
    """Return what another value of a shared budget would do, and change nothing."""
    return desk.budgets.tried(asked)


@router.get("/api/budgets")
def budgets(desk: At) -> api.Budgets:
    """Return the budgets that programs share."""
    return desk.budgets.all()


@router.post("/api/budgets")
def set_budget(desk: At, who: Who, asked: api.BudgetChange) -> api.Done:
    """Set or close a budget that programs share."""
    return desk.budgets.set(asked, who)


@router.get("/api/approvals")
def approvals(desk: At, me: Signed) -> api.Inbox:
    """Return the queue."""
    inbox = desk.inbox.all(me)
    named = names(desk.store, (each.run for each in (*inbox.waiting, *inbox.answered)))
    waiting = [each.model_copy(update={"run_name": named.get(each.run or "", "")}) for each in inbox.waiting]
    answered = [each.model_copy(update={"run_name": named.get(each.run or "", "")}) for each in inbox.answered]
    return inbox.model_copy(update={"waiting": waiting, "answered": answered})


@router.get("/api/approvals/{request_id}")
def approval(desk: At, me: Signed, request_id: str) -> api.Asked:
    """Return one request."""
    asked = desk.inbox.asked(request_id, me)
    until = time.time() + _LINK_S if asked.ask.expires_at is None else asked.ask.expires_at
    link = desk.access.link(asked.ask.id, until, asked.ask.seal) if asked.ask.tone == "wait" else None
    return _around(desk, asked.model_copy(update={"link": link}), messages=True)


@router.post("/api/approvals/{request_id}")
def answer(desk: At, me: Signed, request_id: str, given: api.Answer) -> api.Asked:
    """Approve, edit or reject one request."""
    return desk.inbox.answer(request_id, given, me)


def _around(desk: Desk, asked: api.Asked, *, messages: bool) -> api.Asked:
    """Add its run so far, and what ran; who has a link is shown what it came to, and with `messages` also what was said."""
    if not Store(desk.store).file.exists():
        return asked
    request = desk.inbox.find(asked.ask.id).request
    update: dict[str, object] = {}
    with desk.stored() as stored:
        if request.run_id is not None:
            update["so_far"] = stored.so_far(request, messages=messages)
        if request.op_id is not None and asked.ask.tone == "ok":
            found = stored.ran(request.op_id)
            update["ran"] = found if messages or found is None else found.model_copy(update={"result": None, "call": None})
    return asked.model_copy(update=update)


@router.post("/api/approvals/{request_id}/edit")
def edit(desk: At, request_id: str, given: api.Edit) -> api.Edited:
    """Return what an edit would run, and change nothing."""
    return desk.inbox.edited(request_id, given)


def _linked(desk: Desk, link: str) -> str:
    """Return the id of the request that a link is for; ConfigurationError for one that is not ours, or does not count any more."""
    request_id, _ = desk.access.read_link(link)
    try:
        is_link = desk.access.is_link(link, desk.inbox.find(request_id).seal)
    except ConfigurationError:  # who has no link is told neither which requests there are nor where they are kept
        is_link = False
    except QueueError:
        raise QueueError("The queue of approvals cannot be read now: ask who serves this page.") from None
    if not is_link:
        raise ConfigurationError("This link does not count: it has expired, or is not for what is asked now.")
    return request_id


@router.get("/api/links/{link}")
def linked(desk: At, me: Holding, link: str) -> api.Linked:
    """Return the request that a link is for; looking changes nothing, since chat programs look before their readers do."""
    asked = _around(desk, desk.inbox.asked(_linked(desk, link), me), messages=False)
    return api.Linked(asked=asked, user=me.who, read_only=desk.access.read_only)


@router.post("/api/links/{link}")
def answer_by_link(desk: At, me: Holding, link: str, given: api.Answer) -> api.Asked:
    """Decide the request that a link is for, once: after that it shows what was decided."""
    return desk.inbox.answer(_linked(desk, link), given, me, once=True)


@router.post("/api/links/{link}/edit")
def edit_by_link(desk: At, link: str, given: api.Edit) -> api.Edited:
    """Return what an edit would run, and change nothing."""
    return desk.inbox.edited(_linked(desk, link), given)


@router.get("/api/audit")
def audit_(desk: At, asked: Annotated[api.AuditAsk, Query()]) -> api.Audit:
    """Verify the audit logs, and return the newest entries that fit."""
    found = audit(desk.audit, asked)
    return found.model_copy(update={"names": names(desk.store, (*found.runs, *(each.run for each in found.found)))})


@router.get("/api/runs")
def runs(kept: Kept, asked: Annotated[api.RunsAsk, Query()]) -> api.Runs:
    """Return a page of runs that fit."""
    return kept.runs(asked)


@router.get("/api/runs/{run_id:path}")
def run(kept: Kept, run_id: str, most: Annotated[int, Query(ge=1, le=MOST_NODES)] = MOST_NODES) -> api.Run:
    """Return one run whole, or with so many lines of its tree: a large one takes seconds to be read."""
    return kept.run(run_id, most=most)


@router.get("/api/export/{run_id:path}", include_in_schema=False)
def export(desk: At, kept: Kept, run_id: str) -> Response:
    """Return one run as a page in one file, which asks nobody for anything."""
    told = kept.export(run_id, [row for row in desk.feed.now(desk.inbox).rows if row.run == run_id])
    name = "-".join(filter(None, (_UNSAFE.sub("-", each or "").strip("-.")[:60] for each in (told.run.run.name, run_id[-12:])))) or "run"
    disposition = f'attachment; filename="{name}.html"'
    return Response(_in_one_file(desk, told.model_dump_json()), media_type="text/html", headers={"content-disposition": disposition})


@router.get("/api/calls/{call_id:path}")
def call(kept: Kept, call_id: str) -> api.Call:
    """Return one model call or tool call."""
    return kept.call(call_id)


@router.get("/api/compare")
def compare(kept: Kept, a: str, b: str) -> Comparison:
    """Return two runs side by side."""
    return kept.compare(a, b)


@router.get("/api/whatif")
def what_if(desk: At, asked: Annotated[api.WhatIfAsk, Query()]) -> api.WhatIf:
    """Return which of the runs that are kept a limit would have refused, and change nothing."""
    if not Store(desk.store).file.exists():
        return api.WhatIf()
    with desk.stored() as kept:
        return kept.what_if(asked)


@router.get("/api/spend")
def spend(kept: Kept, asked: Annotated[api.SpendAsk, Query()]) -> api.Spend:
    """Return who spent what, and when."""
    return kept.spend(asked)


@router.get("/api/find")
def find(kept: Kept, text: str = "") -> api.Find:
    """Return what an id or words lead to."""
    return kept.find(text)


@router.api_route("/{path:path}", methods=["GET", "HEAD"], include_in_schema=False)
def page(desk: At, request: Request, path: str) -> Response:
    """Return a file of the page by its exact name, else the page itself, which reads the rest of the address."""
    if path.startswith("api/"):
        raise HTTPException(404)
    known = desk.files.get(path.removeprefix("assets/")) if path.startswith("assets/") else desk.files["index.html"]
    if known is None:
        return PlainTextResponse("There is no such file.\n", 404)
    content, kind, etag = known
    headers = {"cache-control": "no-cache", "etag": etag}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=kind, headers=headers)


def _in_one_file(desk: Desk, told: str) -> str:
    """Put style, script and data into one page. A policy names each by its hash, and nothing in the data can end its element."""
    style, script = (desk.files[name][0].decode() for name in ("style.css", "app.js"))
    script = script.replace("</script", "<\\/script")
    allowed = {name: b64encode(hashlib.sha256(text.encode()).digest()).decode() for name, text in (("style", style), ("script", script))}
    policy = "; ".join(["default-src 'none'", *(f"{name}-src 'sha256-{digest}'" for name, digest in allowed.items())])
    data = told.replace("<", "\\u003c")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>ravi</title><style>{style}</style></head>'
        f'<body><script type="application/json" id="told">{data}</script><script type="module">{script}</script></body></html>'
    )


def create(desk: Desk) -> FastAPI:
    """Return the application, without its guard; no page of FastAPI's own, which would load from elsewhere."""
    app = FastAPI(title="ravi-otel ui", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.desk = desk
    app.include_router(router)
    app.add_exception_handler(RaviError, _sentence)
    app.add_exception_handler(RequestValidationError, _nonsense)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(Exception, _fault)
    return app


def _sentence(_: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{error}\n", 400 if isinstance(error, ConfigurationError) else 409)


def _nonsense(_: Request, error: Exception) -> Response:
    del error  # what it says repeats what was sent
    return PlainTextResponse(f"{_NONSENSE}\n", 422)


def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # FastAPI's own: no such address, another method, a body that cannot be read
    return PlainTextResponse(f"{_SAID.get(error.status_code, error.detail)}\n", error.status_code, error.headers)


def _fault(_: Request, error: Exception) -> Response:
    del error  # uvicorn logs it
    return PlainTextResponse("The page has a fault of its own, which stands where `ravi-otel ui` runs.\n", 500)


class _Connection(H11Protocol):
    """Be one connection, which is ended when a request's head takes too long, so that silent ones do not take the place of others."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # narrowed as uvicorn narrows it
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._await_head()

    def on_response_complete(self) -> None:
        """Begin to wait for the next one."""
        super().on_response_complete()
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        super().connection_lost(exc)
        if self._late is not None:
            self._late.cancel()

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing of a WebSocket, which is none of this page's: what asks for one is answered as if it had not."""

    def _await_head(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = self.loop.call_later(_HEAD_S, self._end_unless_asked)

    def _end_unless_asked(self) -> None:
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is None or cycle.response_complete:
            self.transport.close()


class _Server(uvicorn.Server):
    """Let the pages that listen go before it waits for their connections."""

    def __init__(self, config: uvicorn.Config, feed: Feed) -> None:
        super().__init__(config)
        self._feed = feed

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End."""
        self._feed.end()
        await super().shutdown(sockets)


def server(desk: Desk) -> uvicorn.Server:
    """Return the server, guarded, which has not begun to listen."""
    config = uvicorn.Config(
        Guard(create(desk), desk.access),
        host=desk.access.host,
        port=desk.access.port,
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # who asks is who is connected
        server_header=False,
        http=_Connection,
        ws="none",
        timeout_graceful_shutdown=_STOP_S,
    )
    return _Server(config, desk.feed)
