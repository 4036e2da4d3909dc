"""Say on a span which run, session and agent it belongs to."""

from __future__ import annotations

from opentelemetry.util.types import AttributeValue

from ravi_otel.policy.facts import ScopeFacts
from ravi_otel.telemetry import semconv
from ravi_otel.telemetry.cardinality import text


def identity(facts: ScopeFacts) -> dict[str, AttributeValue]:
    """Give the attributes every span of a run carries; what is unknown is left out."""
    attributes: dict[str, AttributeValue] = {}
    if facts.run_id is not None:
        attributes[semconv.RUN_ID] = text(facts.run_id)
    if facts.session_id is not None:
        attributes[semconv.SESSION_ID] = text(facts.session_id)
    if facts.tenant_id is not None:
        attributes[semconv.TENANT_ID] = text(facts.tenant_id)
    if facts.agent_name is not None:
        attributes[semconv.AGENT_NAME] = text(facts.agent_name)
    if facts.agent_id is not None:
        attributes[semconv.AGENT_ID] = text(facts.agent_id)
        if facts.supervision is not None:
            attributes[semconv.AGENT_DEPTH] = facts.supervision.depth
            attributes[semconv.AGENT_PRIORITY] = facts.supervision.priority.name.lower()
    return attributes
