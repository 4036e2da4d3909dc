"""Write `docs/semantic-conventions.md` from the table of names in the package.

python tests/telemetry/names_page.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ravi_otel._telemetry import names
from ravi_otel._telemetry.names import DETAIL, OPT_IN, STEP_SPANS, TIME_CHUNKS

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "semantic-conventions.md"

_OPENING: Final = f"""\
# Every name that goes out

Written by `make names` from `ravi_otel/_telemetry/names.py`; a test keeps the two equal.

`gen_ai.*` are the OpenTelemetry GenAI conventions, `ravi.*` ours. `{OPT_IN}`, a list with commas, says which GenAI convention
is spoken; other entries in it are passed over, and the choice is made when `instrument()` is called:

| `{OPT_IN}` | names | schema |
|---|---|---|
| not set | *released*: the last released ones, semconv 1.41 | `{names.SCHEMA_URL}` |
| `gen_ai_latest_experimental` | *latest*: those of the GenAI conventions' main branch | `{names.LATEST_SCHEMA_URL}` |
| `gen_ai_latest_experimental/dup` | both | `{names.LATEST_SCHEMA_URL}` |

By default a call tells what the convention requires and recommends, and what our dashboards, alerts and commands read.
`instrument(detail="full")`, or `{DETAIL}=full`, adds the request's id and the rate limits that every answer's headers tell (else only those
of calls that failed or were asked for again), `{names.LIMIT_GRANTED}` and `{names.USAGE_COST_DATE}`.

`{TIME_CHUNKS}=on` times every chunk of a stream (10 to 15 µs each). `{STEP_SPANS}=on` gives each step of an agent's loop a span
`{names.STEP_EVENT}`. What a message says is told only where it is asked for (`OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`).

A run's session is told as `{names.SESSION_ID}`, and under the names that backends group by: `{names.GENERAL_SESSION_ID}`
(Langfuse, Phoenix) and `{names.CONVERSATION_ID}`, which on a call is the provider's own conversation where it keeps one. On spans of
other libraries these two, `{names.USER_ID}` and `{names.AGENT_NAME}` stay as they are where they are set.

A call's cost is told as `{names.USAGE_COST}`, and under the names of an open proposal, `{names.COST_AMOUNT}` and its
sisters. Langfuse takes every number under `gen_ai.usage.` but `{names.LANGFUSE_COST}` for a count, and drops all counts of a call with
one that is no whole number. Where spans go there, by `OTEL_EXPORTER_OTLP_ENDPOINT` or its own `LANGFUSE_PUBLIC_KEY`, that one name is
told in place of the three. By another way rename it [in a collector](stack.md#another-backend-or-no-containers).

What is unknown is left out: a call without usage has no token attributes, and one without a known price no cost. A stream
without usage is estimated by our own count, and says so on its span and its metrics (`{names.USAGE_SOURCE}`). In the
latest convention's counters tokens that a provider does not tell apart are of the modality `unknown`, and a call without
usage adds 0 to them, as that convention asks. Embeddings and fetched responses are no inference there.

A metric's attributes are names of operations, providers, models, hosts, errors, agents, tools, limits and tags, and of the ten fullest
tenants (`{names.LIMIT_FULLEST_USED}`), never the id of a run, a session or a user; after 2,000
combinations a metric sees `_other`. A name that ends in a dot is a prefix.
"""


def page() -> str:
    """Give the page as it should be."""
    return "\n".join([_OPENING, *(line for title, rows in names.SECTIONS.items() for line in _section(title, rows))])


def _section(title: str, rows: list[names.Name]) -> Iterator[str]:
    yield f"## {title}\n"
    yield "| name | kind | unit | needed | told | convention | source | stability | what it says |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        unit = f"`{row.unit}`" if row.unit else ""
        kind = row.kind.replace("_", " ") if row.type is None else f"attribute, {row.type}"
        source, need = row.source, row.need.replace("_", " ")
        yield (
            f"| `{row.name}` | {kind} | {unit} | {need} | {row.detail} | {row.spoken} | {source.title} | {source.stability} "
            f"| {row.description} |"
        )
    yield ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
