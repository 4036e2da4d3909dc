"""Choose which GenAI convention is spoken: the released one, the latest, or both."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ravi_otel._telemetry import names
from ravi_otel.policy.checks import environ_choice, switch

OPT_IN: Final = "OTEL_SEMCONV_STABILITY_OPT_IN"
TIME_CHUNKS: Final = "RAVI_TIME_PER_OUTPUT_CHUNK"
LIMIT_LOG: Final = "RAVI_LIMIT_LOG"
DETAIL: Final = "RAVI_DETAIL"
DETAILS: Final = ("default", "full")
"""How much is told of a call: what the conventions ask for and dashboards, alerts and commands read, or all that is known."""

_LANGFUSE_PATH: Final = "/api/public/otel"
STEP_SPANS: Final = "RAVI_STEP_SPANS"
_LATEST_OPT_IN: Final = "gen_ai_latest_experimental"
_BOTH_OPT_IN: Final = f"{_LATEST_OPT_IN}/dup"


@dataclass(frozen=True, slots=True)
class Convention:
    """The names of a call's telemetry where conventions differ; made once, read at every call."""

    schema_url: str
    released: bool
    latest: bool


RELEASED: Final = Convention(names.SCHEMA_URL, released=True, latest=False)
"""The names of semconv 1.41, and ours where it has none."""

LATEST: Final = Convention(names.LATEST_SCHEMA_URL, released=False, latest=True)
"""The names of the GenAI conventions' main branch."""

BOTH: Final = Convention(names.LATEST_SCHEMA_URL, released=True, latest=True)
"""Every name of either; the schema is the later one's."""


def chosen(environ: Mapping[str, str] = os.environ) -> Convention:
    """Read `OTEL_SEMCONV_STABILITY_OPT_IN`, a list with commas; what others are to read in it is passed over, both go before one."""
    asked = {part.strip().lower() for part in environ.get(OPT_IN, "").split(",")}
    if _BOTH_OPT_IN in asked:
        return BOTH
    return LATEST if _LATEST_OPT_IN in asked else RELEASED


def times_chunks(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether every chunk of a stream is to be timed (`RAVI_TIME_PER_OUTPUT_CHUNK=on`)."""
    return switch(environ, TIME_CHUNKS, default=False, safe=False)


def spans_steps(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether each step of an agent's loop is to have a span of its own (`RAVI_STEP_SPANS=on`)."""
    return switch(environ, STEP_SPANS, default=False, safe=False)


def logs_json(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the lines of the logger `ravi_otel.limits` are JSON (`RAVI_LIMIT_LOG=json`) and not sentences (`text`)."""
    return environ_choice(environ, LIMIT_LOG, ("text", "json")) == "json"


def tells_all(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether all that is known of a call is told (`RAVI_DETAIL=full`), and not only what others read (`default`)."""
    return environ_choice(environ, DETAIL, DETAILS) == "full"


def goes_to_langfuse(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether spans go to Langfuse, by its endpoint or its key.

    It takes every number under `gen_ai.usage.` but `gen_ai.usage.cost` for a count, and drops all the counts of a call of which one is
    no whole number.
    """
    endpoint = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    return _LANGFUSE_PATH in endpoint or bool(environ.get("LANGFUSE_PUBLIC_KEY"))
