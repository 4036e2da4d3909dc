"""Replay everything twice, bare and instrumented, and hold spans, metrics and ledger against the bodies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai._base_client as base_client
from opentelemetry.trace import SpanKind
from recorded_calls import Caller, Outcome, expected_body
from recorded_facts import KINDS, Told, tail_of, told_by

import ravi_otel
from ravi_otel import cost_limit, parse_limit, request_limit, token_limit, turn_limit
from ravi_otel.testing import Capture, Exchange, load_recordings

ALLOWED_TOKENS = 10**9
LIMITS = (
    token_limit(ALLOWED_TOKENS),
    parse_limit(f"input_tokens={ALLOWED_TOKENS}"),
    parse_limit(f"output_tokens={ALLOWED_TOKENS}"),
    request_limit(10**6),
    cost_limit(10**6, on_unpriced="warn"),
    turn_limit(10**6),
)
"""Too high to refuse anything: they are what the ledger counts against."""

TURNS = ("chat/completions", "responses", "completions")
NANO = 10**9


@dataclass(frozen=True)
class Sums:
    """Tokens, nano-USD and calls, as one source tells them."""

    input: int = 0
    output: int = 0
    tokens: int = 0
    cost: int = 0
    requests: int = 0
    turns: int = 0

    def __add__(self, other: Sums) -> Sums:
        return Sums(*(getattr(self, name) + getattr(other, name) for name in Sums.__dataclass_fields__))

    def __sub__(self, other: Sums) -> Sums:
        return Sums(*(getattr(self, name) - getattr(other, name) for name in Sums.__dataclass_fields__))


@dataclass(frozen=True)
class Case:
    """One exchange with its place: `folder/file[index]`."""

    name: str
    exchange: Exchange

    @property
    def folder(self) -> str:
        return self.name.partition("/")[0]

    @property
    def kind(self) -> str:
        stream = " stream" if self.exchange.streamed else ""
        status = f" {self.exchange.status}" if self.exchange.status >= 400 else ""
        return f"{tail_of(self.exchange)}{stream}{status}"


@dataclass
class Verdict:
    """What became of one exchange. `told` is what the body tells, `guessed` what the span marks as estimated, `held`
    what the ledger charged beyond that, up to the grant, because nobody told the usage."""

    case: Case
    same: bool
    spans: int
    problems: list[str] = field(default_factory=list)
    told: Sums = Sums()
    guessed: Sums = Sums()
    held: Sums = Sums()
    by_spans: Sums = Sums()
    by_metrics: Sums = Sums()
    by_ledger: Sums = Sums()

    @property
    def holds(self) -> bool:
        return self.same and self.spans == 1 and not self.problems


@dataclass(frozen=True)
class Result:
    """One replay of everything: a verdict per exchange, and what does not add up over the whole run."""

    colour: str
    form: str
    verdicts: list[Verdict]
    problems: list[str]

    @property
    def holds(self) -> bool:
        return bool(self.verdicts) and not self.problems and all(verdict.holds for verdict in self.verdicts)


def load(folder: Path) -> tuple[list[Case], list[Case]]:
    """Give the exchanges that have a request body, and those that have none."""
    cases = [
        Case(f"{recording.name}[{index}]", exchange)
        for recording in load_recordings(folder)
        for index, exchange in enumerate(recording.exchanges)
    ]
    return [case for case in cases if case.exchange.request is not None], [case for case in cases if case.exchange.request is None]


def replay(cases: Iterable[Case], colour: str, form: str = "plain") -> Result:
    """Make every call bare, then every call instrumented inside one run, and compare."""
    cases = list(cases)
    ravi_otel.uninstrument()
    with Caller(colour, form) as caller:
        if hasattr(base_client.SyncAPIClient.request, "__wrapped__") or hasattr(base_client.AsyncAPIClient.request, "__wrapped__"):
            raise RuntimeError("the client is instrumented already: there is nothing to compare with")
        bare = [caller.call(case.exchange) for case in cases]
    capture = Capture()
    with (
        ravi_otel.instrument(
            tracer_provider=capture.tracer_provider,
            meter_provider=capture.meter_provider,
            logger_provider=capture.logger_provider,
            detail="full",
        ),
        Caller(colour, form) as caller,
        ravi_otel.run("recordings", limits=LIMITS) as run,
    ):
        verdicts = [_judge(case, before, caller.call, capture, run) for case, before in zip(cases, bare, strict=True)]
        problems = _whole_run(verdicts, run)
    capture.shutdown()
    return Result(colour, form, verdicts, problems)


# -- one exchange -----------------------------------------------------------------------------------------------------


def _judge(case: Case, bare: Outcome, call: Callable[[Exchange], Outcome], capture: Capture, run: Any) -> Verdict:
    capture.clear()
    ledger, stats = _ledger(run), run.stats()
    outcome = call(case.exchange)
    spans = [dict(span.attributes or {}) for span in capture.spans() if span.kind is SpanKind.CLIENT]
    verdict = Verdict(case, outcome == bare, len(spans))
    verdict.by_metrics = _metrics(capture)
    verdict.by_ledger = _ledger(run) - ledger
    if not verdict.same:
        verdict.problems.append(f"the caller got {outcome.kind} {_difference(bare, outcome)}")
    _check_sent(verdict, outcome)
    if len(spans) != 1:
        verdict.problems.append(f"{len(spans)} client spans")
        return verdict
    verdict.by_spans = _span_sums(spans[0])
    told = told_by(case.exchange)
    if told.counted:
        tokens = (told.input_tokens or 0, told.output_tokens or 0)
        verdict.told = Sums(*tokens, sum(tokens))
    _check_span(verdict, spans[0], told, outcome)
    _check_sums(verdict, spans[0], told)
    after = run.stats()
    added = (after.input_tokens - stats.input_tokens, after.output_tokens - stats.output_tokens, after.requests - stats.requests)
    _expect(verdict, "run.stats()", added, (verdict.by_spans.input, verdict.by_spans.output, 1))
    return verdict


def _difference(bare: Outcome, outcome: Outcome) -> str:
    names = [name for name in ("kind", "value", "raised", "received") if getattr(bare, name) != getattr(outcome, name)]
    return f"instead of {bare.kind}; differs in {', '.join(names)}"


def _check_sent(verdict: Verdict, outcome: Outcome) -> None:
    _expect(verdict, "requests at the server", len(outcome.received), 1)
    if outcome.received and isinstance(verdict.case.exchange.request, dict):
        got = outcome.received[0]
        _expect(verdict, "path sent", got.path, verdict.case.exchange.path)
        _expect(verdict, "body sent", got.body, expected_body(verdict.case.exchange))


def _check_span(verdict: Verdict, span: Mapping[str, Any], told: Told, outcome: Outcome) -> None:
    exchange = verdict.case.exchange
    failed = exchange.status >= 400
    expected = {
        "error.type": outcome.kind if failed else None,
        "gen_ai.usage.cache_read.input_tokens": told.cached_tokens or None,
        "gen_ai.usage.reasoning.output_tokens": told.reasoning_tokens or None,
        "ravi.limit.decision": "admitted",
    }
    if isinstance(exchange.request, dict):
        expected["gen_ai.request.model"] = exchange.request["model"]
    if failed or tail_of(exchange) in KINDS:
        expected |= {
            "gen_ai.response.model": told.model,
            "gen_ai.response.id": told.id,
            "gen_ai.response.finish_reasons": told.finish_reasons or None,
            "openai.response.service_tier": told.service_tier,
            "openai.response.system_fingerprint": told.fingerprint,
        }
    _expect_all(verdict, span, expected)
    source = None if failed or told.counted else "estimated" if tail_of(exchange) in KINDS else "reserved"
    _expect(verdict, "ravi.usage.source", span.get("ravi.usage.source"), source)
    if source != "estimated":
        embedding = tail_of(exchange) == "embeddings"
        _expect(verdict, "input tokens", span.get("gen_ai.usage.input_tokens"), told.input_tokens)
        _expect(verdict, "output tokens", span.get("gen_ai.usage.output_tokens"), None if embedding else told.output_tokens)


def _check_sums(verdict: Verdict, span: Mapping[str, Any], told: Told) -> None:
    """Spans and metrics are the body's counts or the marked estimate; the ledger's are the body's, else at least the grant."""
    spans, metrics, ledger = verdict.by_spans, verdict.by_metrics, verdict.by_ledger
    source = span.get("ravi.usage.source")
    if source == "estimated":
        verdict.guessed = Sums(spans.input, spans.output, spans.tokens)
        _expect(verdict, "an estimate above nothing", min(spans.input, spans.output) > 0, True)
    _expect(verdict, "tokens by spans", (spans.input, spans.output), _pair(verdict.told + verdict.guessed))
    _expect(verdict, "tokens by metrics", _pair(metrics), _pair(spans))
    _expect(verdict, "cost by metrics", metrics.cost, spans.cost)
    _expect(verdict, "operations by metrics", metrics.requests, 1)
    if source is not None:  # nobody told the usage: the ledger settles no lower than what it held
        verdict.held = ledger - Sums(spans.input, spans.output, spans.tokens, spans.cost, 1, ledger.turns)
        _expect(verdict, "tokens held at the grant", ledger.tokens, max(span.get("ravi.limit.granted", 0), spans.tokens))
    else:
        made = spans.output
        _expect(verdict, "tokens by ledger", (*_pair(ledger), ledger.tokens), (spans.input, made, spans.tokens))
        _expect(verdict, "cost by ledger", ledger.cost, spans.cost)
    _expect(verdict, "requests by ledger", ledger.requests, 1)
    _expect(verdict, "turns by ledger", ledger.turns, int(tail_of(verdict.case.exchange) in TURNS))


def _pair(sums: Sums) -> tuple[int, int]:
    return sums.input, sums.output


def _expect_all(verdict: Verdict, span: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    for name, value in expected.items():
        _expect(verdict, name, span.get(name), value)


def _expect(verdict: Verdict, what: str, found: Any, expected: Any) -> None:
    if found != expected:
        verdict.problems.append(f"{what}: {str(found)[:200]} instead of {str(expected)[:200]}")


# -- what each source tells -------------------------------------------------------------------------------------------


def _span_sums(span: Mapping[str, Any]) -> Sums:
    given, made = span.get("gen_ai.usage.input_tokens", 0), span.get("gen_ai.usage.output_tokens", 0)
    return Sums(given, made, given + made, round(span.get("ravi.usage.cost_usd", 0) * NANO))


def _metrics(capture: Capture) -> Sums:
    points = capture.metric("gen_ai.client.token.usage")
    given, made = (sum(int(point.sum) for point in points if point.attributes["gen_ai.token.type"] == kind) for kind in ("input", "output"))
    cost = round(sum(point.value for point in capture.metric("ravi.usage.cost")) * NANO)
    operations = sum(point.count or 0 for point in capture.metric("gen_ai.client.operation.duration"))
    return Sums(given, made, given + made, cost, operations)


def _ledger(run: Any) -> Sums:
    used = {str(reading.limit.kind): reading.used for reading in run.limits}
    counts = (int(used[kind]) for kind in ("input_tokens", "output_tokens", "tokens"))
    return Sums(*counts, round(used["cost"] * NANO), int(used["requests"]), int(used["turns"]))


def _whole_run(verdicts: list[Verdict], run: Any) -> list[str]:
    """Hold the sums over the whole run against each other; `problems` of the single exchanges are theirs."""
    told, guessed, held, spans, metrics = (
        sum((getattr(verdict, name) for verdict in verdicts), Sums()) for name in ("told", "guessed", "held", "by_spans", "by_metrics")
    )
    ledger = _ledger(run)
    stats = run.stats()
    turns = sum(tail_of(verdict.case.exchange) in TURNS for verdict in verdicts)
    sides = {
        "tokens in and out: bodies + estimates, spans": (_pair(told + guessed), _pair(spans)),
        "tokens in and out: spans, metrics": (_pair(spans), _pair(metrics)),
        "tokens in and out: spans, run.stats()": (_pair(spans), (stats.input_tokens, stats.output_tokens)),
        "tokens: spans + held, ledger": (spans.tokens + held.tokens, ledger.tokens),
        "nano-USD: spans, metrics": (spans.cost, metrics.cost),
        "nano-USD: spans + held, ledger": (spans.cost + held.cost, ledger.cost),
        "requests: exchanges, ledger": (len(verdicts), ledger.requests),
        "requests: exchanges, run.stats()": (len(verdicts), stats.requests),
        "turns: generations, ledger": (turns, ledger.turns),
        "nothing held": (0, sum(reading.held for reading in run.limits)),
        "nothing refused": (0, stats.refused),
    }
    return [f"{what}: {one} and {other}" for what, (one, other) in sides.items() if one != other]
