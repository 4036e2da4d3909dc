"""Read whatever has no module of its own: a plain span, and a request counted when a model may be asked."""

from __future__ import annotations

import re
from typing import Any

from ravi_otel.instrumentation.openai.endpoints import chat, responses
from ravi_otel.instrumentation.openai.endpoints.contract import Request
from ravi_otel.instrumentation.openai.endpoints.paths import segments
from ravi_otel.instrumentation.openai.fields import count, get, text, tokens_in
from ravi_otel.policy.usage import Call, Reply, Usage

_MOST_SEGMENTS = 4
_WORDS = frozenset(
    """
    accept activate alerts archive assistants audio audio_speeches audio_transcriptions batches calls cancel certificates chat
    chatkit checkpoints client_secrets compact complete completions containers content conversations costs deactivate edits
    embeddings evals events fields file_batches files fine_tuning fork generations graders groups hangup images input_items
    input_tokens invites items jobs live messages model_permissions models moderations organization output_items parts pause
    permissions projects rate_limits realtime refer reject remix responses resume roles run runs search sessions skills speech
    steps submit_tool_outputs test threads transcription_sessions transcriptions translations turns uploads usage users validate
    variations vector_stores versions videos voice_consents voices
    """.split()  # noqa: SIM905 - ninety words read better as text
)
"""The words of the API's paths. Any other segment may be an id, a name or a key, and is nobody's business."""


_FREE = frozenset(
    """
    assistants batches chatkit containers content_provenance_checks conversations evals files fine_tuning organization projects
    skills threads uploads vaults vector_stores webhook_endpoints
    """.split()  # noqa: SIM905 - seventeen words read better as text
)
"""What a path begins with that asks no model for anything, or only for what nobody is told."""

_FREE_PATHS = frozenset(
    {
        ("audio", "voice_consents"),
        ("realtime", "client_secrets"),
        ("realtime", "sessions"),
        ("realtime", "transcription_sessions"),
        ("realtime", "translations", "client_secrets"),
        ("responses", "input_tokens"),
    }
)
_FREE_ENDS = frozenset({"cancel", "hangup", "reject"})
_ASKING_ENDS = {"threads": frozenset({"runs", "submit_tool_outputs"}), "fine_tuning": frozenset({"run"})}
"""Where a model is asked all the same: a thread's run, and a grader that is tried out."""

_JOBS = frozenset({("batches",), ("fine_tuning", "jobs")})
"""Where work is begun that is paid for later, and told to nobody here: a request, and nothing once a limit is used up."""

_STORED_CHAT = "chatcmpl"
_VERSION = re.compile(r"v\d{1,3}")


class Other:
    """Read any other path. A POST is generative, and counts as a request, unless its path is known to ask no model."""

    def call(self, request: Request) -> Call:
        """See `Endpoint.call`."""
        host, body, shape = request.host, request.body, path_shape(request.path)
        generative = request.method == "POST" and asks_a_model(request.path)
        moderation = generative and shape == "moderations"
        job = generative and begins_a_job(request.path)
        return Call(
            operation=shape if generative else f"{request.method} {shape}",
            endpoint=shape,
            provider=host.provider,
            provider_assumed=host.assumed,
            model=None if job else text(body, "model"),  # what a job will cost has no price per call
            generative=generative,
            turn=False,
            stream=request.stream,
            input_estimate=tokens_in(body) if generative and not (moderation or job) else 0,
            choices=max(1, count(body.get("n")) or 1),
            server_address=host.address,
            server_port=host.port,
            unread=moderation or job,  # it costs nothing, or nobody can say what: it is not refused for want of a price
        )

    def reply(self, result: Any) -> Reply:
        """See `Endpoint.reply`."""
        return Reply(id=None, model=text(result, "model"), usage=any_usage(get(result, "usage")))

    def collector(self, call: Call) -> OtherCollector:  # noqa: ARG002 - the protocol's
        """See `Endpoint.collector`."""
        return OtherCollector()


class OtherCollector:
    """Follow a stream for the usage one of its events may tell."""

    __slots__ = ("_model", "_usage")

    def __init__(self) -> None:
        self._usage: Usage | None = None
        self._model: str | None = None

    @property
    def complete(self) -> bool:
        """See `Collector.complete`."""
        return self._usage is not None

    def add(self, event: Any) -> None:
        """See `Collector.add`."""
        for holder in (event, get(event, "data"), get(event, "response")):
            if holder is not None:
                self._usage = any_usage(get(holder, "usage")) or self._usage
                self._model = text(holder, "model") or self._model

    def reply(self) -> Reply:
        """See `Collector.reply`."""
        return Reply(model=self._model, usage=self._usage)


def any_usage(found: Any) -> Usage | None:
    """Read a usage object of either spelling; None when it is neither."""
    return None if found is None else responses.usage(found) or chat.usage(found)


def asks_a_model(path: str) -> bool:
    """Tell whether a POST to `path` may make a model work; a path nobody knows may."""
    parts = _below_version(path)
    if not parts or parts in _JOBS:
        return True
    first, last = parts[0], parts[-1]
    if last in _ASKING_ENDS.get(first, ()):
        return True
    stored = parts[:2] == ("chat", "completions") and last.startswith(_STORED_CHAT)
    return not (first in _FREE or last in _FREE_ENDS or parts in _FREE_PATHS or stored)


def begins_a_job(path: str) -> bool:
    """Tell whether a POST to `path` begins a batch or a training, which is paid for when it runs."""
    return _below_version(path) in _JOBS


def _below_version(path: str) -> tuple[str, ...]:
    parts = segments(path)
    while parts and _VERSION.fullmatch(parts[0]):
        parts = parts[1:]
    return parts


def path_shape(path: str) -> str:
    """Give a path without its ids, so that few distinct ones exist: `/files/file-9x1/content` is `files.content`."""
    named = [part for part in path.partition("?")[0].split("/") if part in _WORDS]
    return ".".join(named[:_MOST_SEGMENTS]) or "request"
