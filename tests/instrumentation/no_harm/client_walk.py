"""Walk every public method of the installed client, and call it with plain arguments made from its signature."""

from __future__ import annotations

import functools
import inspect
import json
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
from memory_wire import Answers, Served
from odd_answers import EVENTS, JSON, event_bytes
from openai._models import FinalRequestOptions
from operations import ALL, MODEL, Operation, find
from ordinary import NOTHING_SPECIAL, RUN_EVENTS
from seen import got, shown

_FILE = ("a.txt", b"bytes")
_FILES = {"file", "image", "mask", "input_reference", "audio_sample", "video", "recording"}
_NO_USAGE = {name: value for name, value in NOTHING_SPECIAL.items() if name != "usage"}
_NAMED: dict[str, Any] = {
    "completion_id": "chatcmpl-1",
    "run_id": "run_1",
    "cast_to": dict,
    "path": "/models",
    "model": MODEL,
    "filename": "a.txt",
    "bytes": 5,
    "file": _FILE,
    "files": [_FILE],
    "mime_type": "text/plain",
    "page": None,
    "metadata": {},
    "interval": 0.001,
    "poll_interval_ms": 1,
    "poll_interval": 0.001,
    "options": None,
}
_ANY = openai.OpenAI(api_key="k")
_MISSING = re.compile(r"'(\w+)'")
_HERE = Path(__file__).resolve()
_SPECIAL: dict[str, dict[str, Any]] = {
    "beta.agents.environments.files.prepare": {"files": {"/workspace/a.txt": str(_HERE)}},
    "beta.agents.environments.files.prepare_directory": {"root": str(_HERE.parent), "destination": "/workspace", "include": [_HERE.name]},
    "beta.agents.environments.files.upload": {"environment_id": "env_1", "file": _FILE, "path": "/workspace/a.txt"},
    "uploads.parts.create": {"upload_id": "upload_1", "data": b"bytes"},
    "uploads.upload_file_chunked": {"file": b"bytes", "filename": "a.txt", "bytes": 5, "mime_type": "text/plain", "purpose": "batch"},
    "request": {"cast_to": dict, "options": FinalRequestOptions.construct(method="get", url="/models")},
}
_STATUS = {"files.wait_for_processing": "processed", "beta.agents.sessions.stream": "idle"}
CLIENT_ITSELF = frozenset({"close", "copy", "is_closed", "platform_headers"})
"""What a client can do without a server; it is not called, because it would end the client."""


def methods(client: Any) -> Iterator[str]:
    """Give the paths of all public methods, resource by resource, sorted."""
    yield from sorted(_below(client, ""))


def _below(owner: Any, path: str) -> Iterator[str]:
    names = {name for name in (*dir(type(owner)), *vars(owner)) if not name.startswith(("_", "with_"))}
    for name in names:
        if isinstance(inspect.getattr_static(owner, name, None), property):
            continue
        value = getattr(owner, name)
        if hasattr(type(value), "with_raw_response") or type(value).__module__.startswith("openai.resources"):
            yield from _below(value, f"{path}{name}.")
        elif inspect.ismethod(value) or inspect.isfunction(value):
            yield path + name


def connects(path: str) -> bool:
    """Tell whether a method opens a WebSocket."""
    return path.rpartition(".")[2] == "connect"


def arguments(method: Any, told: set[str] | None = None) -> dict[str, Any]:
    """Give what a method requires, and what it said was `told` to be missing."""
    given: dict[str, Any] = {}
    for name, each in inspect.signature(method).parameters.items():
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            continue
        if each.default is each.empty or name in (told or ()) or name in ("poll_interval", "poll_interval_ms"):
            given[name] = _placeholder(name, str(each.annotation))
    return given


def _placeholder(name: str, annotation: str) -> Any:
    if name in _NAMED:
        return _NAMED[name]
    if name in _FILES:
        return _FILE
    literal = re.search(r"Literal\[\s*[\"']([^\"']+)[\"']", annotation)
    if literal and not annotation.startswith(("Iterable", "List", "Sequence")):
        return literal.group(1)
    for start, value in (("Iterable", [{}]), ("List", [{}]), ("Sequence", ["x"]), ("int", 1), ("float", 1.0), ("bool", True), ("Dict", {})):
        if annotation.startswith(start):
            return value
    return "placeholder_1" if "str" in annotation else {}


def by_path(path: str, *, helper: bool = False) -> Operation | None:
    """Give the operation we know with this method, one that streams if it is asked for."""
    found = [each for each in ALL.values() if each.path in (path, path.removeprefix("beta."))]
    return next((each for each in found if bool(each.events) is helper), found[0] if found else None)


@functools.cache
def tells_usage(path: str) -> bool:
    """Tell whether the answer's type has a place for usage; one that cannot be known has none."""
    try:
        told = typing.get_type_hints(find(_ANY, path)).get("return")
    except (NameError, TypeError):
        return False
    return any("usage" in getattr(kind, "model_fields", ()) for kind in (told, *typing.get_args(told)))


def answer_for(path: str) -> Answers:
    """Answer what the method is ordinarily answered: bytes, events or JSON, as the request asks."""
    whole, events = by_path(path), by_path(path, helper=True)
    plain = whole.body if whole is not None else NOTHING_SPECIAL if tells_usage(path) else _NO_USAGE

    def answer(request: Any) -> Served:
        if b'"stream":true' in request.content.replace(b" ", b"") or "event-stream" in request.headers.get("accept", ""):
            told = events.events if events is not None and events.events else RUN_EVENTS
            return Served(tuple(event_bytes(*each) for each in told), headers=(EVENTS,))
        if isinstance(plain, bytes):
            return Served((plain,), headers=(("content-type", "application/octet-stream"),))
        body = {**plain, "status": _STATUS[path]} if path in _STATUS else plain
        return Served((json.dumps(body).encode(),), headers=(JSON,))

    return answer


async def call(client: Any, path: str, mode: str = "plain", way: str = "whole", more: dict[str, Any] | None = None) -> Any:
    """Call a method as its signature wants it, with what is known of it, and read what it gives to its end."""
    owner, _, name = path.rpartition(".")
    at = find(client, owner) if owner else client
    known = None if path in _SPECIAL else by_path(path, helper=name == "stream")
    method = getattr(at, name)
    chosen = getattr(getattr(at, mode), name) if mode != "plain" and hasattr(getattr(at, mode, None), name) else method
    if known is not None and set(known.given()) <= set(inspect.signature(method).parameters):
        made = await got(chosen(*known.positional, **{**known.given(), **(more or {})}))
    else:
        made = await _tried(chosen, method, _SPECIAL.get(path) or arguments(method), more or {})
    return await used(made, way)


async def _tried(chosen: Any, method: Any, given: dict[str, Any], more: dict[str, Any]) -> Any:
    try:
        return await got(chosen(**given, **more))
    except TypeError as error:
        if "Missing required arg" not in str(error):
            raise
        first = str(error).partition(" or (")[0]
        return await got(chosen(**{**given, **arguments(method, set(_MISSING.findall(first)))}, **more))


async def used(made: Any, way: str = "whole") -> Any:
    """Read a result, also from within a manager."""
    if hasattr(type(made), "__stream__") or not (hasattr(made, "__enter__") or hasattr(made, "__aenter__")):
        return await shown(made, way)
    if hasattr(made, "__aenter__"):
        async with made as inner:
            return [await shown(each) async for each in inner] if hasattr(inner, "__aiter__") else await shown(inner, way)
    with made as inner:
        if hasattr(type(inner), "http_request") or not hasattr(inner, "__iter__"):
            return await shown(inner, way)
        return [await shown(each) for each in inner]
