"""OpenAI's API: which format reads a path, and what of its other paths may ask a model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from ravi_otel._instrumentation.formats import chat, responses
from ravi_otel._instrumentation.formats.fields import as_mapping, as_text, count, get, text, tokens_in, usage_of
from ravi_otel._instrumentation.formats.format import READS, Collector, Request, Shapes, WireFormat, below_version, named, segments
from ravi_otel._instrumentation.formats.media import MEDIA
from ravi_otel.policy._usage import Call, Reply, Usage

_WORDS: Final = frozenset(
    """
    accept activate agents alerts archive artifacts assistants audio audio_speeches audio_transcriptions automations batches
    calls cancel certificates characters chat chatkit checkpoints client_secrets compact complete completions containers content
    content_provenance_checks conversations costs credentials deactivate decisions edits embeddings environments evals events
    extensions fields file_batches files fine_tuning fork generations graders groups hangup images input_items input_tokens
    invites invocations items jobs live messages model_permissions models moderations organization output_items parts pause
    permissions projects rate_limits realtime refer reject remix responses resume roles run runs safety search sessions skills
    speech steps submit_tool_outputs templates test threads transcription_sessions transcriptions translations turns uploads
    usage users validate variations vaults vector_stores versions videos voice_consents voices webhook_endpoints
    """.split()  # noqa: SIM905 - a hundred words read better as text
)
"""The words of the API's paths."""

_FREE: Final = Shapes(
    "batches/*/cancel chat/completions/chatcmpl* files files/*",
    "fine_tuning/alpha/graders/validate fine_tuning/checkpoints/*/permissions fine_tuning/jobs/*/cancel|pause|resume",
    "responses/input_tokens responses/*/cancel uploads uploads/*/cancel|complete|parts",
    "vector_stores vector_stores/* vector_stores/*/file_batches|files|search vector_stores/*/file_batches/*/cancel",
    "vector_stores/*/files/*",
)
"""What asks no model for anything, whoever has an API like this."""

_FREE_AT_HOME: Final = Shapes(
    "agents agents/* agents/automations agents/automations/* agents/automations/*/pause|resume",
    "agents/environments agents/environments/templates agents/environments/templates/* agents/environments/*/files",
    "agents/sessions/* assistants assistants/* audio/voice_consents audio/voice_consents/*",
    "chatkit/sessions chatkit/sessions/*/cancel containers containers/*/files content_provenance_checks",
    "conversations conversations/* conversations/*/items evals evals/* evals/*/runs/*/cancel",
    "live/sessions/*/hangup|refer|reject realtime/calls/*/hangup|refer|reject",
    "realtime/client_secrets|sessions|transcription_sessions realtime/translations/client_secrets skills skills/* skills/*/versions",
    "threads threads/* threads/*/messages threads/*/messages/* threads/*/runs/* threads/*/runs/*/cancel",
    "vaults vaults/* vaults/*/credentials vaults/*/credentials/*",
    "webhook_endpoints webhook_endpoints/* webhook_endpoints/*/rotate_secret|test",
    # what an organization is made of
    "organization/admin_api_keys|certificates|data_retention|external_keys|external_storage|groups|invites|projects|roles",
    "organization/spend_alerts|spend_limit|workload_identity_providers organization/certificates/activate|deactivate",
    "organization/certificates|groups|projects|roles|spend_alerts|users|workload_identity_providers/*",
    "organization/external_keys|external_storage/*/validate organization/groups/*/roles|users organization/users/*/roles",
    "organization/workload_identity_providers/*/federation_rules organization/workload_identity_providers/*/federation_rules/*",
    "organization/projects/*/archive|certificates|data_retention|groups|hosted_tool_permissions|model_permissions",
    "organization/projects/*/service_accounts|service_tier_settings|spend_alerts|spend_limit|users",
    "organization/projects/*/certificates/activate|deactivate organization/projects/*/service_accounts/*/api_keys",
    "organization/projects/*/api_keys|rate_limits|service_accounts|spend_alerts|users/*",
    "projects/*/groups|users/*/roles projects/*/roles projects/*/roles/*",
)
"""What asks no model for anything where the API is OpenAI's own: a conversation may be an answer elsewhere."""

_HOME: Final = frozenset({"", "openai", "azure.ai.openai"})
_JOBS: Final = Shapes("batches evals/*/runs fine_tuning/jobs")
"""Where work is begun that is paid for later, and told to nobody here: a request, and nothing once a limit is used up."""

_RUNS: Final = Shapes("threads/runs threads/*/runs threads/*/runs/*/submit_tool_outputs")
"""Where an assistant is set to work: paid for later as well, and refused by a cost limit like any call without a price."""

_ROOT: Final = "openai"
"""What Azure and groq keep the API below."""


class Plain(WireFormat):
    """Read what asks no model: no usage is taken from its answer, which may be of something that was counted before."""

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        shape = named(request.path, _WORDS)
        return request.describe(f"{request.method} {shape}", shape, model=None, generative=False, turn=False)

    def reply(self, result: Any) -> Reply:  # noqa: ARG002 - the protocol's
        """See `WireFormat.reply`."""
        return Reply()


class Other(WireFormat):
    """Read a POST to any other path, which may make a model work: it counts as a request."""

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        body, shape = request.body, named(request.path, _WORDS)
        parts = below_version(segments(request.path), _ROOT)
        unread = _JOBS.has(parts)
        job = unread or _RUNS.has(parts)
        return request.describe(
            shape,
            model=None if job else text(body, "model"),  # what a job will cost has no price per call
            turn=False,
            size=0 if job else tokens_in(body),
            choices=max(1, count(body.get("n")) or 1),
            job=job,
            unread=unread,  # nobody can say what it will cost: it is not refused for want of a price
        )

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        told = as_mapping(result)
        return Reply(model=as_text(told.get("model")), usage=any_usage(told.get("usage")))

    def collector(self, call: Call) -> Collector:  # noqa: ARG002 - the protocol's
        """See `WireFormat.collector`."""
        return OtherCollector()


class OtherCollector(Collector):
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
    if found is None:
        return None
    if get(found, "prompt_tokens") is None:
        return responses.usage(found)
    return chat.usage(found) or _input_only(found)


def _input_only(found: Any) -> Usage | None:
    """Read the usage of embeddings, which make no tokens."""
    if get(found, "completion_tokens") is not None:
        return None
    return usage_of(found, inputs="prompt_tokens", outputs=None, input_details="prompt_tokens_details", output_details="")


def _asks_a_model(parts: tuple[str, ...], provider: str = "") -> bool:
    """Whether a POST to a path of these segments may make a model work; a path nobody knows may.

    `provider` is who answers; empty it is OpenAI.
    """
    parts = below_version(parts, _ROOT)
    return not (_FREE.has(parts) or (provider in _HOME and _FREE_AT_HOME.has(parts)))


# -- the paths ----------------------------------------------------------------------------------------------------------

_MOST_KEPT: Final = 512
_OTHER: Final = Other()
PLAIN: Final = Plain()
_FORMATS: Final[dict[tuple[str, ...], WireFormat]] = {
    ("chat", "completions"): chat.CHAT,
    ("completions",): chat.Completions(),
    **dict.fromkeys((("agents", "completions"), ("fim", "completions")), chat.CHAT),  # Mistral's, whose answers are those of a chat
    ("responses",): responses.RESPONSES,
    ("responses", "compact"): responses.Compact(),
    **MEDIA,
}


@lru_cache(maxsize=_MOST_KEPT)
def format_for(method: str, path: str, base: str = "", provider: str = "") -> WireFormat:
    """Return the format of `path` below the base URL's path, by how it ends; what only reads creates nothing.

    `provider` is who answers; empty it is OpenAI.
    """
    parts = segments(path, base)
    if method in READS:
        return responses.look_at(method, parts, path) or PLAIN
    found = known(parts)
    if found is not None:
        return found
    if _asks_a_model(segments(path), provider):
        return _OTHER
    return responses.look_at("POST", parts, path) or PLAIN


def known(parts: tuple[str, ...], _body: Mapping[str, Any] | None = None) -> WireFormat | None:
    """Return the format of a POST to a path that ends as one of this API does."""
    return _FORMATS.get(parts[-2:]) or _FORMATS.get(parts[-1:])


def by_body(body: Mapping[str, Any]) -> WireFormat | None:
    """Return the format of a POST to a path that nobody knows, where its body is that of a chat, or asks a model by name."""
    if text(body, "model") is None:
        return None
    if isinstance(body.get("messages"), (list, tuple)):
        return chat.CHAT
    return _OTHER if any(body.get(name) is not None for name in ("prompt", "input")) else None
