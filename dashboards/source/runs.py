"""The dashboard of runs and agents: who is at work, who waits, what the gate says, and single runs by their traces."""

from __future__ import annotations

from dashboards.source import panels as p
from dashboards.source import queries as q
from dashboards.source.board import CALLS, RUNS, TREE, Board
from dashboards.source.names import label
from ravi_otel._telemetry import names

_RUNS = q.of(names.WORKFLOW_DURATION, part="_count")
_FAILED_RUNS = q.of(names.WORKFLOW_DURATION, f'{q.ERROR}!=""', part="_count")
_RUN_BUCKETS = q.of(names.WORKFLOW_DURATION, part="_bucket")
_AGENTS = q.of(names.AGENT_DURATION, part="_count")
_OUTCOME = label(names.SPAWN_OUTCOME)
_SPAWNS = q.of(names.SPAWN_EVENTS)
_ACTIVE = q.of(names.AGENT_ACTIVE)
_PAUSED = q.of(names.AGENT_PAUSED)
_REVIEWS = q.of(names.REVIEW_DECISIONS)
_REVIEW = label(names.REVIEW_DECISION)
_REASON = label(names.REVIEW_REASON)
_HANDED_TO = label(names.HANDOFF_TO)
_GUARDRAIL = label(names.GUARDRAIL_NAME)
_STAGE = label(names.GUARDRAIL_STAGE)
_BY_AGENT = f"{{{{{q.AGENT}}}}}"
_BY_PRIORITY = f"{{{{{q.PRIORITY}}}}}"
_BY_RUN = f"{{{{{q.WORKFLOW}}}}}"


def make() -> Board:
    """Make the dashboard."""
    board = Board(
        RUNS,
        "Ravi / Runs and agents",
        "Who is at work and who waits, what becomes of requests for a slot, what the gate decides, and single runs, by their traces.",
    )
    agents = _agents(board)
    board.first("Now", *_now(), *_runs(board), *agents[:3])
    board.row("Run by run, from the trace store", *_run_by_run(board))
    board.row("How runs and agents end", *_ends(), *agents[3:])
    board.row("Slots", *_slots())
    board.row("What the gate decides", *_gate())
    board.row("Limit events", _events())
    board.row("One run", _tree(), _logs_of_trace())
    return board


def _now() -> list[p.Figure]:
    spawned = q.of(names.SPAWN_EVENTS, f'{_OUTCOME}="denied"')
    preempted = q.of(names.SPAWN_EVENTS, f'{_OUTCOME}="preempted"')
    blocked = q.of(names.REVIEW_DECISIONS, f'{_REVIEW}=~"block|escalate"')
    return [
        p.figure("Agents at work", "Agents that hold a slot now.", "none", p.reading(q.or_zero(q.total(q.now(_ACTIVE)), q.told(q.NOW)))),
        p.figure(
            "Agents paused",
            "Agents that wait now, for more urgent work or by an operator.",
            "none",
            p.reading(q.or_zero(q.total(q.now(_PAUSED)), q.told(q.NOW))),
            steps=p.ANY_IS_ODD,
        ),
        p.figure(
            "Spawns denied",
            "Requests for a slot that were refused in the time shown.",
            "none",
            p.reading(q.or_zero(q.moved(spawned))),
            steps=p.ANY_IS_ODD,
            decimals=0,
        ),
        p.figure(
            "Preempted",
            "Agents that lost their slot to more urgent work, in the time shown.",
            "none",
            p.reading(q.or_zero(q.moved(preempted))),
            steps=p.ANY_IS_ODD,
            decimals=0,
        ),
        p.figure(
            "Blocked or escalated",
            "What the gate did not let through by itself, in the time shown.",
            "none",
            p.reading(q.or_zero(q.moved(blocked))),
            steps=p.ANY_IS_ODD,
            decimals=0,
        ),
        p.figure(
            "Runs that fail",
            "Share of the runs in the time shown that ended in an error, a refusal among them.",
            "percentunit",
            p.reading(q.ratio(f"({q.or_zero(q.moved(_FAILED_RUNS), q.none_of(_RUNS))})", q.moved(_RUNS))),
            steps=((None, "green"), (0.01, "orange"), (0.05, "red")),
            decimals=1,
        ),
    ]


def _tree() -> p.Plain:
    return p.other(
        "traces",
        "The run as a tree",
        "The run whose trace is chosen: its agents, calls and tools, with what each used of its budget. A refused call is red, and says "
        "which limit refused it. "
        "Choose one by its id in a table of this dashboard, or type it in at the top.",
        {},
        p.JaegerQuery(query="$trace"),
        width=24,
        height=18,
    ).id(TREE)


def _logs_of_trace() -> p.Logs:
    of_trace = f'{{{q.SERVICE}=~"$service"}} | trace_id="$trace" | event_name=~"ravi[.]limit[.].+"'
    return p.log_lines("Limit events of that run", "Each limit that came near or was exceeded in the trace that is shown.", of_trace)


def _run_by_run(board: Board) -> list[p.Table]:
    tree = board.to_tree("Show its tree")
    run = label(names.RUN_ID)
    whose = label(names.LIMIT_SCOPE_NAME)
    cost = q.limit_events(f'{q.KIND}="cost"', q.OF_SCOPES, f"unwrap {label(names.LIMIT_USED)}")
    dearest = p.rows(
        "Dearest of those near a limit of cost",
        "What was spent against each limit of cost when it was last told near or exceeded, the dearest first: of an agent, a run, a "
        "tenant or whatever has the limit, all its runs together. The trace is the one that came near; the run is told where the limit "
        "is within one. What is far from its limit is not among them, nor what has none.",
        "currencyUSD",
        [p.counted_records(f"topk(20, max by ({q.SCOPE}, {whose}, {run}, trace_id) (max_over_time({cost} [{q.RANGE}])))")],
        {"trace_id": "Trace", q.SCOPE: "Limit per", whose: "Whose", run: "Run", "Value #A": "Spent"},
        worst="Spent",
    ).datasource(p.LOKI)
    p.widened(dearest, {"Limit per": 100, "Spent": 100})
    p.linked(p.shortened(p.shortened(dearest, "Trace"), "Run"), "Trace", *tree)
    p.linked(dearest, "Run", board.to_page("It on the page"))
    return [
        p.found_traces(
            "Refused runs",
            "Traces of the service chosen at the top that hold something a limit refused or stopped, newest first. The id leads "
            "to its tree.",
            p.search(f"error.type={names.ERROR_LIMIT}", limit=100),
            tree,
        ),
        dearest,
        p.found_traces(
            "Longest runs",
            "Traces of runs of the service chosen at the top, the longest first, of the newest 200.",
            p.search(f"{names.OPERATION_NAME}={names.INVOKE_WORKFLOW}", limit=200),
            tree,
            slowest=True,
        ),
        p.found_traces(
            "Runs with an error",
            "Traces of the service chosen at the top that hold a span that failed, refused ones among them, newest first.",
            p.search("error=true", limit=100),
            tree,
        ),
    ]


def _runs(board: Board) -> list[p.Lines]:
    failed = board.to(RUNS, "Runs with an error, one by one", trace_tags="error%3Dtrue")
    return [
        p.lines(
            "Runs, by name",
            "Runs a second that ended, by name.",
            "reqps",
            p.series(q.said(q.rate(_RUNS, (q.WORKFLOW,)), q.WORKFLOW, "without a name"), _BY_RUN),
        ),
        p.lines(
            "Runs that end in an error, by error.type",
            f"Runs that ended in an error, by name. {p.STOPPED}",
            "none",
            p.series(q.stepped(_FAILED_RUNS, (q.WORKFLOW, q.ERROR)), f"{_BY_RUN} {{{{{q.ERROR}}}}}"),
            bars=True,
        ).data_links([failed]),
        p.lines(
            "Duration of runs",
            "Half and 95 % of runs take less, by name.",
            "s",
            p.series(q.quantile(0.5, _RUN_BUCKETS, (q.WORKFLOW,)), f"p50 {_BY_RUN}"),
            p.series(q.quantile(0.95, _RUN_BUCKETS, (q.WORKFLOW,)), f"p95 {_BY_RUN}", exemplars=True),
        ),
    ]


def _agents(board: Board) -> list[p.Lines]:
    calls = board.to(CALLS, "Calls and tools", agent=f"${{__field.labels.{q.AGENT}}}")
    buckets = q.of(names.AGENT_DURATION, part="_bucket")

    def mean(metric: str) -> str:
        return q.ratio(q.rate(q.of(metric, part="_sum"), (q.AGENT,)), q.rate(q.of(metric, part="_count"), (q.AGENT,)))

    return [
        p.lines(
            "Agents, by name",
            "Agents a second that ended, by name.",
            "reqps",
            p.series(q.rate(_AGENTS, (q.AGENT,)), _BY_AGENT),
        ).data_links([calls]),
        p.lines(
            "Duration of agents, 95 %",
            "95 % of an agent's turns at work take less.",
            "s",
            p.series(q.quantile(0.95, buckets, (q.AGENT,)), _BY_AGENT, exemplars=True),
        ).data_links([calls]),
        p.lines(
            "Model calls and tool calls of an agent",
            "How many of each one invocation makes, on average. A rise is an agent that goes in circles.",
            "none",
            p.series(mean(names.AGENT_INFERENCE_CALLS), f"{_BY_AGENT}: model calls"),
            p.series(mean(names.AGENT_TOOL_CALLS), f"{_BY_AGENT}: tool calls"),
        ).data_links([calls]),
        p.lines(
            "Cost per hour, by agent",
            "What is spent per hour, by agent. A point leads to the trace of a call.",
            "currencyUSD",
            p.series(f"{q.said(q.rate(q.of(names.COST), (q.AGENT,)), q.AGENT, 'no agent')} * 3600", _BY_AGENT, exemplars=True),
        ).data_links([calls]),
    ]


def _ends() -> list[p.Lines]:
    status, reason = label(names.STATUS), label(names.STOP_REASON)
    ended = f"{{{{{status}}}}} {{{{{reason}}}}}"
    agents = q.stepped(q.of(names.AGENT_ENDS, f'{status}!="ok"'), (q.AGENT, status, reason))
    handed = q.stepped(q.of(names.HANDOFF_COUNT), (q.AGENT, _HANDED_TO))
    guarded = q.stepped(q.of(names.GUARDRAIL_COUNT), (_GUARDRAIL, _STAGE))
    return [
        p.lines(
            "Runs that end, by status and reason",
            "How runs ended and why: a stopped one is no error and no success either. Its reason names the limit, or what stopped it.",
            "none",
            p.series(q.stepped(q.of(names.RUN_ENDS), (status, reason)), ended),
            bars=True,
        ),
        p.lines(
            "Agents that do not end well, by reason",
            "Agents that were stopped, refused, cancelled or failed, by agent and why. Many of one reason are a limit that is too narrow, "
            "or an agent that goes in circles.",
            "none",
            p.series(q.said(agents, q.AGENT, "no name"), f"{_BY_AGENT}: {ended}"),
            bars=True,
        ),
        p.lines(
            "Steps of agents",
            "Steps a second of loops of agents that are built with ours, by agent.",
            "none",
            p.series(q.rate(q.of(names.STEP_COUNT), (q.AGENT,)), _BY_AGENT),
        ),
        p.lines(
            "Handoffs and delegations",
            "Who hands work over to whom, how often.",
            "none",
            p.series(q.said(handed, q.AGENT, "a run"), f"{_BY_AGENT} → {{{{{_HANDED_TO}}}}}"),
            bars=True,
        ),
        p.lines(
            "Guardrails that stop something",
            "How often each guardrail stopped an input or an output.",
            "none",
            p.series(guarded, f"{{{{{_GUARDRAIL}}}}} {{{{{_STAGE}}}}}"),
            bars=True,
        ),
    ]


def _slots() -> list[p.Lines]:
    return [
        p.lines(
            "At work, by priority",
            "Agents that hold a slot, by priority.",
            "none",
            p.series(q.total(q.now(_ACTIVE), (q.PRIORITY,)), _BY_PRIORITY),
        ),
        p.lines(
            "Paused, by priority",
            "Agents that wait, by priority. Those of low priority that stay here get nothing done.",
            "none",
            p.series(q.total(q.now(_PAUSED), (q.PRIORITY,)), _BY_PRIORITY),
        ),
        p.lines(
            "Requests for a slot, by outcome",
            "How many: granted, denied, preempted, resumed. Denied without preempted: there is nobody less urgent to take a slot from.",
            "none",
            p.series(q.stepped(_SPAWNS, (_OUTCOME, q.PRIORITY)), f"{{{{{_OUTCOME}}}}} {_BY_PRIORITY}"),
            bars=True,
        ),
    ]


def _gate() -> list[p.Lines | p.Table]:
    decided = p.rows(
        "Decisions, by tool",
        "What the gate decided of each tool in the time shown, and why, the most frequent first.",
        "short",
        [p.column(q.moved(_REVIEWS, (q.TOOL, _REVIEW, _REASON)))],
        {q.TOOL: "Tool", _REVIEW: "Decision", _REASON: "Reason", "Value": "Times"},
        width=8,
        worst="Times",
    )
    p.widened(decided, {"Decision": 90, "Times": 70})
    p.nameless(decided, "Tool", "an answer")
    return [
        p.lines(
            "Decisions",
            "How many: approved, revised, blocked, escalated to a person.",
            "none",
            p.series(q.stepped(_REVIEWS, (_REVIEW,)), f"{{{{{_REVIEW}}}}}"),
            bars=True,
        ),
        p.lines(
            "Why",
            "Decisions by their reason, as the supervisor spells it. Many of one reason are a rule that belongs into the prompt.",
            "none",
            p.series(q.stepped(_REVIEWS, (_REVIEW, _REASON)), f"{{{{{_REVIEW}}}}}: {{{{{_REASON}}}}}"),
            bars=True,
        ),
        decided,
    ]


def _events() -> p.Logs:
    return p.log_lines(
        "Limit events",
        q.EVENTS_TOLD,
        q.limit_events(),
    )
