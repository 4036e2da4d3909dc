"""Carry what only an agent's own loop and its gate know: steps, handoffs, reviews, and guardrails that trip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ravi_otel.policy.facts import ScopeFacts

ReviewKind = Literal["approve", "revise", "block", "escalate"]


@dataclass(frozen=True, slots=True)
class StepEvent:
    """Tell that an agent's loop begins or ends its step number `step`, which counts from 1; `status` is None at its beginning."""

    what: Literal["start", "end"]
    facts: ScopeFacts
    step: int
    status: Literal["ok", "error", "stopped", "paused"] | None = None


@dataclass(frozen=True, slots=True)
class HandoffEvent:
    """Tell that the agent of `facts` has handed work to the agent `to`: in a `handoff()`, or as an orchestrator that delegates."""

    facts: ScopeFacts
    to: str
    mode: Literal["handoff", "delegation"]


@dataclass(frozen=True, slots=True)
class ReviewEvent:
    """Tell what the gate decided about one proposed action; told once a decision, so a revised action is told of again.

    `tool` is the tool that was proposed, None of a final answer. `args_sha256` is the full hash of what was judged. `executed_from` and
    `human_approved` are filled in when that is known, which is with the decision that lets the action through or refuses it for good
    (`final`). `arguments` are what was judged, filled in only when content is captured.
    """

    facts: ScopeFacts
    decision: ReviewKind
    reason: str
    tool: str | None
    args_sha256: str
    final: bool = False
    executed_from: str | None = None
    human_approved: bool | None = None
    risk_score: float | None = None
    arguments: Mapping[str, object] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class GuardrailEvent:
    """Tell that a guardrail stopped something: `guardrail` is its name, `level` what it stood before or after, `reason` its own words."""

    facts: ScopeFacts
    guardrail: str
    level: Literal["agent", "chat", "tool"]
    stage: Literal["input", "output"]
    reason: str | None = None
