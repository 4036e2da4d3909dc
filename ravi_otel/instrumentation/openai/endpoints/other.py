"""Read whatever has no module of its own: a plain span, and a request counted when a model is asked."""

from __future__ import annotations

from typing import Any

from ravi_otel.instrumentation.openai.endpoints.contract import Request
from ravi_otel.instrumentation.openai.endpoints.silent import SilentCollector
from ravi_otel.instrumentation.openai.fields import text, tokens_in
from ravi_otel.policy.usage import Call, Reply

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


class Other:
    """Read any other path. A POST that names a model is generative: it counts as a request; what it used is unknown."""

    def call(self, request: Request) -> Call:
        """See `Endpoint.call`."""
        host, model = request.host, text(request.body, "model")
        generative = request.method == "POST" and model is not None
        shape = path_shape(request.path)
        return Call(
            operation=shape if generative else f"{request.method} {shape}",
            endpoint=shape,
            provider=host.provider,
            provider_assumed=host.assumed,
            model=model,
            generative=generative,
            turn=shape == "completions",
            stream=request.stream,
            input_estimate=tokens_in(request.body) if generative else 0,
            server_address=host.address,
            server_port=host.port,
        )

    def reply(self, result: Any) -> Reply:
        """See `Endpoint.reply`."""
        return Reply(id=None, model=text(result, "model"))

    def collector(self, call: Call) -> SilentCollector:  # noqa: ARG002 - the protocol's
        """See `Endpoint.collector`."""
        return SilentCollector()


def path_shape(path: str) -> str:
    """Give a path without its ids, so that few distinct ones exist: `/files/file-9x1/content` is `files.content`."""
    named = [part for part in path.partition("?")[0].split("/") if part in _WORDS]
    return ".".join(named[:_MOST_SEGMENTS]) or "request"
