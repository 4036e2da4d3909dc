"""Read whatever has no module of its own: a plain span, and a request counted when a model may be asked."""

from __future__ import annotations

from typing import Any, Final

from ravi_otel.instrumentation.anthropic.endpoints.usage import usage
from ravi_otel.instrumentation.formats.fields import count, get, text, tokens_in
from ravi_otel.instrumentation.formats.format import Collector, Request, WireFormat
from ravi_otel.instrumentation.formats.paths import READS, Shapes, below_version, named, segments
from ravi_otel.policy.usage import Call, Reply

_WORDS: Final = frozenset(
    """
    ack action_urls agents analytics api_keys archive batches cancel certificates compliance_settings content cost_report
    count_tokens credentials deny deployment_runs deployments download dreams enrollment_url environments events external_keys
    federation_issuers federation_rules files heartbeat invites mcp_oauth_validate members memories memory_stores memory_versions
    messages models organizations pause permissions plugin_marketplaces plugins rate_limits rbac_groups rbac_roles redact
    resources results run service_accounts sessions skills spend_limits stop stream telemetry_destinations threads tunnels
    unpause usage usage_report user_profiles users validate vaults versions webhooks work workspaces
    """.split()  # noqa: SIM905 - many words read better as text
)
"""The words of the API's paths."""

_FREE: Final = Shapes("files messages/count_tokens messages/batches/*/cancel")
"""What asks no model for anything, whoever has an API like this."""

_FREE_AT_HOME: Final = Shapes(
    "agents agents/* agents/*/archive deployments deployments/* deployments/*/archive|pause|unpause dreams/*/archive|cancel",
    "environments environments/* environments/*/archive environments/*/work/* environments/*/work/*/ack|heartbeat|stop",
    "memory_stores memory_stores/* memory_stores/*/archive|memories memory_stores/*/memories/* memory_stores/*/memory_versions/*/redact",
    "sessions sessions/* sessions/*/archive|resources sessions/*/resources/* sessions/*/threads/*/archive",
    "skills skills/*/versions tunnels tunnels/*/archive|certificates|reveal_token|rotate_token tunnels/*/certificates/*/archive",
    "user_profiles user_profiles/* user_profiles/*/action_urls|enrollment_url vaults vaults/* vaults/*/archive|credentials",
    "vaults/*/credentials/* vaults/*/credentials/*/archive|mcp_oauth_validate",
    # what an organization is made of
    "organizations/compliance_settings|external_keys|federation_issuers|federation_rules|invites|plugins|rbac_groups|service_accounts",
    "organizations/spend_limits|telemetry_destinations|webhooks|workspaces organizations/claude_tag/slack_channels",
    "organizations/api_keys|external_keys|federation_issuers|federation_rules|plugin_marketplaces|plugins|rbac_groups/*",
    "organizations/service_accounts|telemetry_destinations|users|webhooks|workspaces/*",
    "organizations/claude_code/managed_settings/configuration|rbac_group_default organizations/claude_code/managed_settings/rbac_groups/*",
    "organizations/claude_tag/bundles|slack_channels|slack_workspaces/* organizations/claude_tag/bundles/*/targets",
    "organizations/external_keys/*/validate organizations/federation_issuers|federation_rules|service_accounts|workspaces/*/archive",
    "organizations/federation_rules|service_accounts/*/workspaces organizations/plugin_marketplaces/validate_archive|validate_repository",
    "organizations/plugins/*/versions organizations/plugins/*/installation_settings/* organizations/rbac_groups/*/members",
    "organizations/spend_limit_increase_requests/*/approve|deny organizations/telemetry_destinations/*/test",
    "organizations/telemetry_destinations/*/workspaces/* organizations/users/*/sign_out",
    "organizations/webhooks/*/regenerate_signing_secret organizations/workspaces/*/members|service_accounts",
    "organizations/workspaces/*/members|rate_limits|service_accounts/*",
)
"""What asks no model for anything where the API is Anthropic's own."""

_LEGACY: Final = ("complete",)
_LEGACY_CAP: Final = "max_tokens_to_sample"
"""A legacy completion tells no usage: it is charged what is held of it."""

_HOME: Final = frozenset({"anthropic", "aws.bedrock", "gcp.vertex_ai"})
_JOBS: Final = Shapes("dreams messages/batches sessions/*/events deployments/*/run")
"""Where work is begun that is paid for later, or an agent that the provider runs is set to work: told to nobody here."""


class Other(WireFormat):
    """Read any other path. A POST is generative, and counts as a request, unless its path is known to ask no model."""

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        host, body, shape = request.host, request.body, named(request.path, _WORDS)
        parts = below_version(segments(request.path, host.base))
        generative = request.method not in READS and asks_a_model(parts, at_home=host.assumed or host.provider in _HOME)
        job = generative and _JOBS.has(parts)
        completes = generative and parts == _LEGACY
        return Call(
            operation=shape if generative else f"{request.method} {shape}",
            endpoint=shape,
            provider=host.provider,
            provider_assumed=host.assumed,
            model=None if job else text(body, "model"),  # what a job will cost has no price per call
            generative=generative,
            turn=completes,
            stream=request.stream,
            input_estimate=tokens_in(body) if generative and not job else 0,
            output_cap=count(body.get(_LEGACY_CAP)) if completes else None,
            server_address=host.address,
            server_port=host.port,
            job=job,
            unread=job,  # nobody can say what it costs: it is not refused for want of a price
        )

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        return Reply(model=text(result, "model"), usage=usage(get(result, "usage")))

    def collector(self, call: Call) -> Collector:  # noqa: ARG002 - the protocol's
        """See `WireFormat.collector`."""
        return Collector()


def asks_a_model(parts: tuple[str, ...], *, at_home: bool) -> bool:
    """Tell whether a POST to this path may make a model work; a path nobody knows may."""
    return not (_FREE.has(parts) or (at_home and _FREE_AT_HOME.has(parts)))
