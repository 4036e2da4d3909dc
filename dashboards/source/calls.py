"""The dashboard of model calls and tools: how many, how slow, how wrong, how many tokens, at which cost."""

from __future__ import annotations

from dashboards.source import panels as p
from dashboards.source import queries as q
from dashboards.source.board import CALLS, RUNS, Board
from dashboards.source.names import label
from ravi_otel._telemetry import names

_COUNT = q.calls(q.CALLS, "_count")
_FAILED = q.calls(q.CALLS, "_count", f'{q.ERROR}!=""')
_BUCKETS = q.calls(q.CALLS, "_bucket")
_FIRST = q.calls(q.FIRST_CHUNKS, "_bucket")
_TOOLS = q.of(names.TOOL_DURATION, part="_count")
_FAILED_TOOLS = q.of(names.TOOL_DURATION, f'{q.ERROR}!=""', part="_count")
_TOOL_BUCKETS = q.of(names.TOOL_DURATION, part="_bucket")
_TOKENS = q.of(names.TOKEN_USAGE, part="_sum")
_TOKEN_BUCKETS = q.of(names.TOKEN_USAGE, part="_bucket")
_TYPE = label(names.TOKEN_TYPE)
_STATUS = label(names.HTTP_STATUS)
_ANSWERED_BY = label(names.RESPONSE_MODEL)
_SPENT = q.of(names.COST)
_QUANTILES = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
_LATEST = {
    "input": names.INPUT_COUNT,
    "output": names.OUTPUT_COUNT,
    "of the input, read from a cache": names.CACHE_READ_COUNT,
    "of the input, written to a cache": names.CACHE_WRITE_COUNT,
    "of the output, reasoning": names.REASONING_COUNT,
}
_BY_MODEL = f"{{{{{q.MODEL}}}}}"
_ERRORS = ((None, "green"), (0.01, "orange"), (0.05, "red"))


def make() -> Board:
    """Make the dashboard."""
    board = Board(
        CALLS,
        "Ravi / LLM and tools",
        "Rate, errors and duration of model calls and tools, tokens, cost and retries. Refused calls are on Budgets: they were never sent.",
    )
    calls, durations, tokens = _calls(board), _durations(board), _tokens(board)
    seen_first = (calls.pop(0), calls.pop(2), durations.pop(0), tokens.pop(0), tokens.pop(2))
    agents = _agents(board)
    board.first("Now", *_now(), *seen_first, agents.pop(0))
    board.row("Calls", *calls)
    board.row("How long they take", *durations)
    board.row("Tokens and cost", *tokens)
    board.row("By agent", *agents)
    board.row("Retries", *_retries(board))
    board.row("Tools", *_tools())
    board.row("Traces", *_traces(board))
    return board


def _now() -> list[p.Figure]:
    return [
        p.figure("Calls", "Model calls a second that were sent.", "reqps", p.reading(q.rate(_COUNT))),
        p.figure(
            "Failed",
            "Share of the calls in the time shown that ended in an error, their retries included in the call.",
            "percentunit",
            p.reading(q.ratio(f"({q.or_zero(q.moved(_FAILED), q.none_of(_COUNT))})", q.moved(_COUNT))),
            steps=_ERRORS,
            decimals=2,
        ),
        p.figure(
            "Slow calls take",
            "95 % of calls take less, of those in the time shown.",
            "s",
            p.reading(q.quantile_of_all(0.95, _BUCKETS)),
        ),
        p.figure(
            "First chunk after",
            "95 % of streams say something sooner, of those in the time shown. No data: nothing was streamed.",
            "s",
            p.reading(f"{q.quantile_of_all(0.95, _FIRST)} >= 0"),
        ),
        p.figure(
            "Retries",
            "Attempts after the first, in the time shown.",
            "none",
            p.reading(q.or_zero(q.moved(q.of(names.RETRY_COUNT)))),
            steps=p.ANY_IS_ODD,
            decimals=0,
        ),
        p.figure(
            "Spent",
            "Cost of calls in the time shown, of those with a known price.",
            "currencyUSD",
            p.reading(q.or_zero(q.moved(_SPENT))),
            decimals=2,
        ),
    ]


def _by_another() -> str:
    """Give the rate of calls by the model asked for and the one that answered, without those where both are one.

    No matcher compares two labels: so each model asked for is written where the answer's is, and what is then equal is taken away.
    """
    answered = q.calls(q.CALLS, "_count", f'{_ANSWERED_BY}!=""')
    by_itself = f'label_join({q.rate(answered, (q.MODEL,))}, "{_ANSWERED_BY}", "", "{q.MODEL}")'
    return f"{q.rate(answered, (q.MODEL, _ANSWERED_BY))} unless on ({q.MODEL}, {_ANSWERED_BY}) {by_itself}"


def _calls(board: Board) -> list[p.Lines]:
    failed = board.to(RUNS, "Runs with an error", trace_tags="error%3Dtrue")
    return [
        p.lines(
            "Calls, by model",
            "Calls a second, by the model that was asked for.",
            "reqps",
            p.series(q.rate(_COUNT, (q.MODEL,)), _BY_MODEL),
        ),
        p.lines(
            "Calls, by provider and operation",
            "Calls a second, by who answers and what is asked: chat, embeddings and others.",
            "reqps",
            p.series(q.rate(_COUNT, (q.PROVIDER, q.OPERATION)), f"{{{{{q.PROVIDER}}}}} {{{{{q.OPERATION}}}}}"),
        ),
        p.lines(
            "Answered by another model",
            "Calls a second whose answer names another model than was asked for, such as a dated release of it. No data: none did.",
            "reqps",
            p.series(_by_another(), f"{_BY_MODEL} → {{{{{_ANSWERED_BY}}}}}"),
        ),
        p.lines(
            "Errors, by error.type",
            "Failed calls, by what was raised or what the answer stated.",
            "none",
            p.series(q.stepped(_FAILED, (q.ERROR, q.PROVIDER)), f"{{{{{q.ERROR}}}}} {{{{{q.PROVIDER}}}}}"),
            bars=True,
        ).data_links([failed]),
        p.lines(
            "Share that fails, by model",
            "Failed calls over calls, by model. Dashed: 1 % and 5 %.",
            "percentunit",
            p.series(q.ratio(q.rate(_FAILED, (q.MODEL,)), q.rate(_COUNT, (q.MODEL,))), _BY_MODEL),
            steps=_ERRORS,
        ).data_links([failed]),
        p.lines(
            "Share that fails, by server",
            "Failed calls over calls, by the server that was asked: one that fails alone is down, all together are asked wrongly.",
            "percentunit",
            p.series(
                q.ratio(q.rate(_FAILED, (label(names.SERVER_ADDRESS),)), q.rate(_COUNT, (label(names.SERVER_ADDRESS),))),
                f"{{{{{label(names.SERVER_ADDRESS)}}}}}",
            ),
            steps=_ERRORS,
        ),
    ]


def _durations(board: Board) -> list[p.Lines | p.Heat]:
    slow = board.to(RUNS, "Runs of this service")
    return [
        p.lines(
            "Duration",
            "Half, 95 % and 99 % of calls take less, retries and their waits included. Points are single calls: each leads to its trace.",
            "s",
            *(p.series(q.quantile(share, _BUCKETS), name, exemplars=share > 0.9) for share, name in _QUANTILES),
        ).data_links([slow]),
        p.lines(
            "Duration, 95 %, by model",
            "95 % of a model's calls take less.",
            "s",
            p.series(q.quantile(0.95, _BUCKETS, (q.MODEL,)), _BY_MODEL, exemplars=True),
        ).data_links([slow]),
        p.spread(
            "Durations",
            "How calls are spread over durations: two bands are two kinds of calls, a band that rises is a provider that slows down.",
            "s",
            q.total(f"increase({_BUCKETS}[{q.RATE}])", ("le",)),
        ),
        p.lines(
            "Time to the first chunk",
            "Of streams: half, 95 % and 99 % have their first chunk sooner. This is what a person waits for.",
            "s",
            *(p.series(q.quantile(share, _FIRST), name, exemplars=share > 0.9) for share, name in _QUANTILES),
        ),
        p.lines(
            "Time to the first chunk, 95 %, by model",
            "95 % of a model's streams have their first chunk sooner.",
            "s",
            p.series(q.quantile(0.95, _FIRST, (q.MODEL,)), _BY_MODEL, exemplars=True),
        ),
        p.lines(
            "Time from chunk to chunk, 95 %, by model",
            "How fast streams flow. It is told only where RAVI_TIME_PER_OUTPUT_CHUNK=1 asks for it.",
            "s",
            p.series(q.quantile(0.95, q.calls(q.EACH_CHUNK, "_bucket"), (q.MODEL,)), _BY_MODEL),
        ),
    ]


def _tokens(board: Board) -> list[p.Lines]:
    of_type = f"{{{{{_TYPE}}}}}"
    per_call = q.ratio(q.rate(_SPENT, (q.MODEL,)), q.rate(_COUNT, (q.MODEL,)))
    per_token = q.ratio(q.rate(_SPENT, (q.MODEL,)), q.rate(_TOKENS, (q.MODEL,)))
    by_model = board.to(RUNS, "Runs", model=f"${{__field.labels.{q.MODEL}}}")
    return [
        p.lines(
            "Tokens a second, by type",
            "In and out. Cached and reasoning tokens are parts of input and output, and are told under the names of the latest "
            "convention alone.",
            "short",
            p.series(q.rate(_TOKENS, (_TYPE,)), of_type),
            *(p.series(q.rate(q.of(metric)), f"{name} (latest names)") for name, metric in _LATEST.items()),
        ),
        p.lines(
            "Tokens a second, by model",
            "In and out together, by the model that was asked for.",
            "short",
            p.series(q.rate(_TOKENS, (q.MODEL,)), _BY_MODEL),
            p.series(
                f"{q.rate(q.of(names.INPUT_COUNT), (q.MODEL,))} + {q.rate(q.of(names.OUTPUT_COUNT), (q.MODEL,))}",
                f"{_BY_MODEL} (latest names)",
            ),
        ),
        p.lines(
            "Tokens of a call",
            "Median and 95th percentile, in and out. An input that grows from call to call is a conversation that nobody cuts.",
            "short",
            p.series(q.quantile(0.5, _TOKEN_BUCKETS, (_TYPE,)), f"median {of_type}"),
            p.series(q.quantile(0.95, _TOKEN_BUCKETS, (_TYPE,)), f"95 % {of_type}", exemplars=True),
        ),
        p.lines(
            "Cost per hour, by model",
            "What is spent per hour, by the model that was asked for. Points are single calls: each leads to its trace.",
            "currencyUSD",
            p.series(f"{q.rate(_SPENT, (q.MODEL,))} * 3600", _BY_MODEL, exemplars=True),
        ).data_links([by_model]),
        p.lines(
            "Cost of a call, by model",
            "The mean over the calls of a model. Calls without a known price cost nothing here, and make the mean too low.",
            "currencyUSD",
            p.series(per_call, _BY_MODEL),
        ).data_links([by_model]),
        p.lines(
            "Cost of a million tokens, by model",
            "What is really paid, in and out together, for comparing models: it falls with more cached input.",
            "currencyUSD",
            p.series(f"{per_token} * 1e6", _BY_MODEL),
        ),
    ]


def _agents(board: Board) -> list[p.Lines]:
    by_agent = board.to(RUNS, "Runs of this agent", agent=f"${{__field.labels.{q.AGENT}}}")
    legend = f"{{{{{q.AGENT}}}}}"
    from_spans = "From the collector's own metrics of spans, counted before sampling, without what was refused and never sent."
    failed = q.said(q.stepped(q.spans("calls_total", f'{q.ERROR}!=""'), (q.AGENT, q.ERROR)), q.AGENT, "no agent")
    slow = q.said(q.quantile(0.95, q.spans("duration_seconds_bucket"), (q.AGENT,)), q.AGENT, "no agent")
    return [
        p.lines(
            "Model calls, by agent",
            f"Calls a second. {from_spans}",
            "reqps",
            p.series(q.said(q.rate(q.spans("calls_total"), (q.AGENT,)), q.AGENT, "no agent"), legend, exemplars=True),
        ).data_links([by_agent]),
        p.lines(
            "Errors of model calls, by agent and error.type",
            f"Failed calls. {from_spans}",
            "none",
            p.series(failed, f"{legend} {{{{{q.ERROR}}}}}", exemplars=True),
            bars=True,
        ).data_links([by_agent]),
        p.lines(
            "Duration of model calls, 95 %, by agent",
            f"95 % of an agent's calls take less. {from_spans}",
            "s",
            p.series(slow, legend, exemplars=True),
        ).data_links([by_agent]),
    ]


def _retries(board: Board) -> list[p.Lines]:
    by_agent = board.to(RUNS, "Runs of this agent", agent=f"${{__field.labels.{q.AGENT}}}")
    retries = q.said(q.stepped(q.of(names.RETRY_COUNT), (q.PROVIDER, _STATUS)), q.PROVIDER, "agents started again")
    stopped = q.of(names.AGENT_DURATION, f'{q.ERROR}!=""', part="_count")
    return [
        p.lines(
            "Retries, by provider and status",
            "Attempts after the first, by the status of the answer that was tried again: 429 is a rate limit, none is a lost connection.",
            "none",
            p.series(retries, f"{{{{{q.PROVIDER}}}}} {{{{{_STATUS}}}}}"),
            width=12,
            bars=True,
        ),
        p.lines(
            "Agents that end in an error, by error.type",
            f"Agents that ended in an error, by agent. {p.STOPPED}",
            "none",
            p.series(q.stepped(stopped, (q.AGENT, q.ERROR)), f"{{{{{q.AGENT}}}}} {{{{{q.ERROR}}}}}"),
            width=12,
            bars=True,
        ).data_links([by_agent]),
    ]


def _tools() -> list[p.Lines | p.Table]:
    legend = f"{{{{{q.TOOL}}}}}"
    columns = {q.TOOL: "Tool", "Value #A": "Calls", "Value #B": "Failed", "Value #C": "Share failed", "Value #D": "95 % take less than"}
    found = p.rows(
        "Tools",
        "Each tool in the time shown, the most called first. Refused ones are not among them: they were never run.",
        "short",
        [
            p.column(q.moved(_TOOLS, (q.TOOL,))),
            p.column(q.moved(_FAILED_TOOLS, (q.TOOL,))),
            p.column(q.ratio(q.moved(_FAILED_TOOLS, (q.TOOL,)), q.moved(_TOOLS, (q.TOOL,)))),
            p.column(q.quantile_of_all(0.95, _TOOL_BUCKETS, (q.TOOL,))),
        ],
        columns,
        width=24,
        worst="Calls",
    )
    p.widened(found, {"Calls": 120, "Failed": 120, "Share failed": 140, "95 % take less than": 180})
    p.dressed(found, "Share failed", "percentunit", _ERRORS)
    p.dressed(found, "95 % take less than", "s")
    return [
        p.lines("Tool calls, by tool", "Tool calls a second, by name.", "reqps", p.series(q.rate(_TOOLS, (q.TOOL,)), legend)),
        p.lines(
            "Tool errors, by tool and error.type",
            "Tool calls that failed, by what was raised.",
            "none",
            p.series(q.stepped(_FAILED_TOOLS, (q.TOOL, q.ERROR)), f"{legend} {{{{{q.ERROR}}}}}"),
            bars=True,
        ),
        p.lines(
            "Tool duration, 95 %, by tool",
            "95 % of a tool's calls take less. What a tool waits for, a run waits for.",
            "s",
            p.series(q.quantile(0.95, _TOOL_BUCKETS, (q.TOOL,)), legend, exemplars=True),
        ),
        found,
    ]


def _traces(board: Board) -> list[p.Table]:
    tree = board.to_tree("Its tree")
    return [
        p.found_traces(
            "Traces with an error",
            "Traces of the service chosen at the top that hold a span that failed, newest first.",
            p.search("error=true"),
            tree,
        ),
        p.found_traces(
            "Traces that took longest",
            "Traces of the service chosen at the top that took a second or more, longest first, of the newest 200.",
            p.search("", limit=200, minDuration="1s"),
            tree,
            slowest=True,
        ),
    ]
