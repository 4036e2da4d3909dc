"""Say on a span which run, session and agent it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from opentelemetry.util.types import AttributeValue

from ravi_otel._telemetry import names
from ravi_otel._telemetry.cardinality import text
from ravi_otel.policy.facts import ScopeFacts

_MOST_KEPT: Final = 1_024
_kept: dict[str, tuple[ScopeFacts, Mapping[str, AttributeValue]]] = {}


def kept_identity(facts: ScopeFacts) -> Mapping[str, AttributeValue]:
    """Give `identity(facts)` to read only, made once per scope: many calls run in one."""
    found = _kept.get(facts.scope_id)
    if found is not None and found[0] is facts:
        return found[1]
    made = identity(facts)
    if len(_kept) >= _MOST_KEPT:
        _kept.clear()
    _kept[facts.scope_id] = (facts, made)
    return made


def identity(facts: ScopeFacts) -> dict[str, AttributeValue]:
    """Give the attributes every span of a run carries; what is unknown is left out."""
    attributes: dict[str, AttributeValue] = {}
    if facts.run_id is not None:
        attributes[names.RUN_ID] = text(facts.run_id)
    if facts.session_id is not None:
        session = text(facts.session_id)  # ours, and the names that backends group by
        attributes[names.SESSION_ID] = attributes[names.GENERAL_SESSION_ID] = attributes[names.CONVERSATION_ID] = session
    if facts.tenant_id is not None:
        attributes[names.TENANT_ID] = text(facts.tenant_id)
    if facts.user_id is not None:
        attributes[names.USER_ID] = text(facts.user_id)
    for key, value in facts.tags.items():
        attributes[f"{names.TAG_PREFIX}{key}"] = text(value)
    if facts.agent_name is not None:
        attributes[names.AGENT_NAME] = text(facts.agent_name)
    if facts.agent_id is not None:
        attributes[names.AGENT_ID] = text(facts.agent_id)
    return attributes
