"""The dashboard to open first: what is used of limits, what was refused, what it costs, and whose it is."""

from __future__ import annotations

from dashboards.source import panels as p
from dashboards.source import queries as q
from dashboards.source.board import BUDGETS, CALLS, HEALTH, RUNS, Board
from dashboards.source.health import heard
from ravi_otel._telemetry import names

_SPENT = q.of(names.COST)
_EVENTS = q.of(names.LIMIT_EVENTS)
_EXCEEDED = q.of(names.LIMIT_EVENTS, f'{q.EVENT}="limit_exceeded"')
_KIND_UNIT = "in the unit of its kind: tokens, USD, calls, seconds"
_LIMIT_LEGEND = f"{{{{{q.SERVICE}}}}} {{{{{q.ENVIRONMENT}}}}} {{{{{q.SCOPE}}}}} {{{{{q.WHOSE}}}}}: {{{{{q.KIND}}}}} {{{{{q.PER}}}}}"
_AGENT_LEGEND = f"{{{{{q.SERVICE}}}}} {{{{{q.ENVIRONMENT}}}}} {{{{{q.AGENT}}}}} {{{{{q.KIND}}}}} per {{{{{q.SCOPE}}}}}"
_FIRING = 'ALERTS{alertname=~"Ravi.+",severity=~"critical|warning",alertstate="firing"}'
_EVALUATED = '0 * count(ALERTS{alertname="RaviWatchdog",alertstate="firing"})'
_NEVER_S = 1e9
"""Stands for no end at this pace."""


def make() -> Board:
    """Make the dashboard."""
    board = Board(
        BUDGETS,
        "Ravi / Budgets",
        "Are limits holding, which is the next to run out, what was refused, and who spends the money. Start here when an alert comes.",
    )
    board.first("Now", *_now(board), _worst_first(board), _alerts(), _refused(board).height(9), _top_spenders(board))
    board.row("How full limits are", *_over_time(board), *_burn(board))
    board.row("What was refused", *_refusals(board))
    board.row("Who spends the money", *_spenders(board))
    board.row("Alerts, events and their traces", *_told(board))
    return board


def _now(board: Board) -> list[p.Figure]:
    refused_runs = board.to(RUNS, "Refused runs, one by one")
    health = board.to(HEALTH, "Telemetry health")
    active = f"max by ({', '.join(q.OF_LIMIT)}) ({q.used()})"
    return [
        p.figure(
            "Alerts that fire",
            "Warnings and worse that fire now, each with a runbook: see the list. No data: RaviWatchdog, which always fires, does not.",
            "none",
            p.reading(q.or_zero(f"count({_FIRING})", _EVALUATED)),
            steps=p.ANY_IS_BAD,
            width=3,
        ),
        p.figure(
            "Calls refused",
            "Refusals by a limit in the time shown. Those of limits that only observe are not among them: they let the call through. "
            "No data: no program has told anything in that time.",
            "none",
            p.reading(q.or_zero(q.moved(q.refused()))),
            steps=p.ANY_IS_BAD,
            decimals=0,
            width=3,
        ).data_links([refused_runs]),
        p.figure(
            "Near or over",
            "Active limits that are used to the share at which RaviBudgetNearLimit tells of them (ravi:near_limit:threshold; 80 % "
            "where there are no rules of ours). The table below names them, worst first. No data: no limit is active.",
            "none",
            p.reading(q.or_zero(f"count({active} >= {q.NEAR})", f"0 * count({active})")),
            steps=p.ANY_IS_ODD,
            width=3,
        ),
        p.figure(
            "Fullest limit",
            "Used over limit of the fullest limit that is active now. At 100 % the next call that counts against it is refused. "
            "No data: no limit is active.",
            "percentunit",
            p.reading(f"max({q.used()})"),
            steps=p.FULLNESS,
            width=3,
        ),
        p.worded(
            p.figure(
                "First to run out",
                "The shortest time until a limit is used up that is not used up yet, at the pace of the last quarter of an hour. "
                "No data: no limit is active.",
                "s",
                p.reading(q.or_zero(f"min({q.exhaustion()})", f"0 * count({active}) + {_NEVER_S:.0f}")),
                steps=((None, "red"), (900, "orange"), (3600, "green")),
                width=3,
            ),
            "no end in sight",
            _NEVER_S,
            "green",
        ),
        p.figure(
            "Spent",
            "Cost of model calls in the time shown, of those with a known price. What has none is under Telemetry health. "
            "No data: no program has told anything in that time.",
            "currencyUSD",
            p.reading(q.or_zero(q.moved(_SPENT))),
            decimals=2,
            width=3,
        ),
        *heard(health),
    ]


def _worst_first(board: Board) -> p.Table:
    columns = {
        "Value #A": "Share",
        q.SCOPE: "Scope",
        q.WHOSE: "Whose",
        q.KIND: "Counts",
        q.PER: "Per",
        "Value #B": "Used",
        "Value #C": "Limit",
        "Value #D": "Time left",
        q.SERVICE: "Service",
        q.ENVIRONMENT: "Environment",
    }
    found = p.rows(
        "Used against limit, worst first",
        f"The ten fullest active scopes of each kind by name, in the process where they are fullest: used and limit {_KIND_UNIT}. "
        "A session is the fullest of all. Time left is at the pace of the last quarter of an hour. A name leads to traces and runs.",
        "short",
        [
            p.column(f"max by ({', '.join(q.OF_LIMIT)}) ({q.used()})"),
            p.column(q.fullest(names.LIMIT_FULLEST_USED)),
            p.column(q.fullest(names.LIMIT_FULLEST_THRESHOLD)),
            p.column(q.exhaustion()),
        ],
        columns,
        width=24,
        worst="Share",
    )
    p.widened(found, {"Share": 160, "Scope": 90, "Counts": 130, "Per": 80, "Used": 110, "Limit": 110, "Time left": 110})
    p.dressed(found, "Share", "percentunit", p.FULLNESS, gauge=True, most=1)
    p.dressed(found, "Time left", "s")
    found.height(8)
    service = "${__data.fields.Service}"
    where = {"service": service, "trace_service": service}
    tenant = board.to(RUNS, "Traces of tenant ${__value.text}", trace_tags=f"{names.TENANT_ID}%3D${{__value.raw}}", **where)
    agent = board.to(RUNS, "Runs of agent ${__value.text}", agent="${__value.raw}", **where)
    return p.linked(found, "Whose", tenant, agent)


def _over_time(board: Board) -> list[p.Lines]:
    return [
        p.lines(
            "Used against limit over time",
            "Used over limit of the fullest scopes by name. It falls where a scope closes or a window begins anew. Dashed: near at 80 %, "
            "exhausted at 100 %.",
            "percentunit",
            p.series(f"max by ({', '.join(q.OF_LIMIT)}) ({q.used()})", _LIMIT_LEGEND),
            width=12,
            steps=p.FULLNESS,
        ),
        p.lines(
            "Used against limit over time, by agent",
            "Used over limit of the fullest scope of each agent and kind: which agent's limits, or without one a run's or those around it.",
            "percentunit",
            p.series(q.used_by_agent(), _AGENT_LEGEND),
            width=12,
            steps=p.FULLNESS,
        ).data_links([_runs_of_limit(board)]),
    ]


def _runs_of_limit(board: Board) -> p.Link:
    """Lead from a line that is one limit to the runs of its agent and the traces of its service."""
    service = f"${{__field.labels.{q.SERVICE}}}"
    return board.to(RUNS, "Runs of this agent", agent=f"${{__field.labels.{q.AGENT}}}", service=service, trace_service=service)


def _refused(board: Board) -> p.Lines:
    refused_runs = board.to(RUNS, "Refused runs, one by one")
    return p.lines(
        "Refused, by kind and scope",
        "Calls that a limit refused, by what it counts and whose it is. Every refused call has a span: the link leads to them.",
        "none",
        p.series(q.stepped(q.refused(), (q.KIND, q.SCOPE)), f"{{{{{q.KIND}}}}} per {{{{{q.SCOPE}}}}}"),
        bars=True,
    ).data_links([refused_runs])


def _refusals(board: Board) -> list[p.Lines | p.Table]:
    by_agent = board.to(RUNS, "Runs of this agent", agent=f"${{__field.labels.{q.AGENT}}}")
    outside = q.said(q.stepped(_EXCEEDED, (q.AGENT, q.SCOPE, q.DECISION)), q.AGENT, "no agent's")
    return [
        p.lines(
            "Limits exceeded, by agent",
            "Limits that were exceeded, by the agent whose limit it is; without an agent it is that of a run, session, tenant or process. "
            "Admitted: the call that went beyond it had been let through, as what it would use was not known before. Denied: a call was "
            "refused. A limit is told once, refusals that follow are in the panel to the left.",
            "none",
            p.series(
                outside,
                f"{{{{{q.AGENT}}}}} per {{{{{q.SCOPE}}}}}: {{{{{q.DECISION}}}}}",
                exemplars=True,
            ),
            bars=True,
        ).data_links([by_agent]),
        p.lines(
            "Limits near or exceeded",
            "How often limits came near, and how often they were exceeded. Near without exceeded is a limit that fits.",
            "none",
            p.series(q.stepped(_EVENTS, (q.EVENT, q.SCOPE)), f"{{{{{q.EVENT}}}}} {{{{{q.SCOPE}}}}}", exemplars=True),
            bars=True,
        ),
        p.lines(
            "Would have been refused",
            "Refusals of limits that only observe: what would come of enforcing them. Look here before a limit is made to refuse.",
            "none",
            p.series(
                q.stepped(q.of(names.LIMIT_DENIED, f'{q.DECISION}="observed"'), (q.KIND, q.SCOPE)),
                f"{{{{{q.KIND}}}}} per {{{{{q.SCOPE}}}}}",
            ),
            bars=True,
        ),
        p.lines(
            "Waited, cut and set aside",
            "How many waits for budget held by others were given up, answers were cut at a strict limit's cap, and limits were set aside "
            "in a block.",
            "none",
            p.series(q.stepped(q.of(names.LIMIT_CONTENDED), (q.KIND,)), f"gave up waiting: {{{{{q.KIND}}}}}"),
            p.series(q.stepped(q.of(names.LIMIT_TRUNCATED), (q.KIND,)), f"answers cut: {{{{{q.KIND}}}}}"),
            p.series(q.stepped(q.of(names.LIMIT_SUSPENDED), (q.KIND,)), f"set aside: {{{{{q.KIND}}}}}"),
            bars=True,
        ),
        _overrun(),
        p.lines(
            "How full limits were at the end",
            "Used over limit when a run or agent closed: median and 95th percentile. A median far below 100 % says that a limit is too "
            "wide to "
            "stop anything; one near 100 % that it stops ordinary work.",
            "percentunit",
            p.series(q.quantile(0.5, q.of(names.LIMIT_FINAL_RATIO, part="_bucket"), (q.KIND,)), f"median {{{{{q.KIND}}}}}"),
            p.series(q.quantile(0.95, q.of(names.LIMIT_FINAL_RATIO, part="_bucket"), (q.KIND,)), f"95 % {{{{{q.KIND}}}}}"),
        ),
    ]


def _overrun() -> p.Table:
    """List what is in as many units as there are kinds: on one axis a cent beside a thousand tokens would be nothing."""
    found = p.rows(
        "Overrun, by kind and scope",
        f"What was used in the time shown beyond what was granted, each row {_KIND_UNIT}. Rows are not to be added up.",
        "short",
        [p.column(f"{q.moved(q.of(names.LIMIT_OVERAGE), (q.KIND, q.SCOPE))} > 0")],
        {q.KIND: "Counts", q.SCOPE: "Scope", "Value": "Beyond"},
        width=12,
        worst="Beyond",
    )
    return p.dressed(found, "Beyond", "short")


def _burn(board: Board) -> list[p.Lines]:
    threshold = f"({q.now(q.of(names.LIMIT_FULLEST_THRESHOLD))} > 0)"
    share = f"max by ({', '.join(q.OF_LIMIT)}) ({q.pace()} * 3600 / {threshold})"
    times = f"{q.pace()} / {threshold} * {q.now(q.of(names.LIMIT_FULLEST_WINDOW))}"
    return [
        p.lines(
            "Share of a limit used per hour",
            "At the pace of the last quarter of an hour: 100 % an hour uses a limit up in an hour. Only what grows is shown.",
            "percentunit",
            p.series(share, _LIMIT_LEGEND),
            width=12,
        ),
        p.lines(
            "Pace, in times of what a window allows",
            "Of limits with a window, by the last quarter of an hour: at 1 a limit lasts just as long as its window, at 3 a third of it. "
            "What RaviBudgetBurnTooFast tells of is 3, 6 or 14.4, by how long the window is.",
            "none",
            p.series(f"max by ({', '.join(q.OF_LIMIT)}) ({times})", _LIMIT_LEGEND),
            width=12,
        ),
        p.lines(
            "Time until a limit is used up",
            "At the pace of the last quarter of an hour, by limit. Dashed: a quarter of an hour, the time in which somebody should have "
            "looked.",
            "s",
            p.series(q.exhaustion(), _LIMIT_LEGEND),
            width=12,
            steps=((None, "red"), (900, "green")),
        ),
        p.lines(
            "Cost per hour, by model",
            "What is spent per hour, by the model that was asked for. Points are single calls: each leads to its trace.",
            "currencyUSD",
            p.series(f"{q.rate(_SPENT, (q.MODEL,))} * 3600", f"{{{{{q.MODEL}}}}}", exemplars=True),
            width=12,
        ).data_links([board.to(CALLS, "Calls of this model", model=f"${{__field.labels.{q.MODEL}}}")]),
    ]


def _top_spenders(board: Board) -> p.Table:
    by = (q.SERVICE, q.TEAM, q.AGENT)
    found = p.rows(
        "Who spends the most",
        "Cost of model calls in the time shown by service, tag team and agent, the ten dearest. More ways to tell them apart are below.",
        "currencyUSD",
        [p.column(f"topk(10, {q.moved(_SPENT, by)})")],
        {q.SERVICE: "Service", q.TEAM: "Team", q.AGENT: "Agent", "Value": "USD"},
        width=8,
        worst="USD",
    )
    p.widened(found, {"USD": 90})
    p.nameless(p.nameless(found, "Team", "no tag"), "Agent", "no agent")
    return p.linked(found, "Agent", board.to(RUNS, "Runs of ${__value.text}", agent="${__value.raw}"))


def _spenders(board: Board) -> list[p.Table | p.Lines]:
    carried = board.to(RUNS, "Traces of ${__value.text}", trace_tags="ravi.tag.tenant%3D${__value.raw}")
    return [
        _spending(
            "tag tenant",
            "Tag tenant",
            q.TENANT,
            "Of the tag, which is not the tenant that a limit or an alert names (tenant_id).",
            carried,
        ),
        _spending(
            "team",
            "Team",
            q.TEAM,
            "The tag that runs have.",
            board.to(RUNS, "Traces of ${__value.text}", trace_tags="ravi.tag.team%3D${__value.raw}"),
        ),
        _spending(
            "agent",
            "Agent",
            q.AGENT,
            "Of which calls outside an agent have none.",
            board.to(RUNS, "Runs of ${__value.text}", agent="${__value.raw}"),
        ),
        _spending(
            "model",
            "Model",
            q.MODEL,
            "What a call of each costs is on the dashboard of calls.",
            board.to(CALLS, "Calls of ${__value.text}", model="${__value.raw}"),
        ),
        p.lines(
            "Cost per hour, by the tags tenant and team",
            "Where a rise in spending comes from. Points are single calls: each leads to its trace.",
            "currencyUSD",
            p.series(
                f"{q.said(q.said(q.rate(_SPENT, (q.TENANT, q.TEAM)), q.TENANT, 'no tenant'), q.TEAM, 'no team')} * 3600",
                f"{{{{{q.TENANT}}}}} {{{{{q.TEAM}}}}}",
                exemplars=True,
            ),
            width=12,
        ),
        p.lines(
            "Cost per hour, counted by providers or estimated by us",
            "What is marked estimated is of tokens that no provider counted, such as those of an answer that was cut off: the invoice "
            "may differ by it.",
            "currencyUSD",
            p.series(f"{q.said(q.rate(_SPENT, (q.SOURCE,)), q.SOURCE, 'counted by the provider')} * 3600", f"{{{{{q.SOURCE}}}}}"),
            width=12,
        ),
    ]


def _spending(by: str, title: str, label: str, more: str, to: p.Link) -> p.Table:
    found = p.rows(
        f"Spent, by {by}",
        f"Cost of model calls in the time shown and its share of all, the dearest first. {more}",
        "currencyUSD",
        [p.column(q.moved(_SPENT, (label,))), p.column(f"{q.moved(_SPENT, (label,))} / scalar({q.moved(_SPENT)} > 0)")],
        {label: title, "Value #A": "USD", "Value #B": "Share"},
        width=12,
        worst="USD",
    )
    p.widened(found, {"USD": 110})
    p.nameless(found, title, f"no {by}")
    p.dressed(found, "Share", "percentunit", p.CALM, gauge=True, most=1)
    return p.linked(found, title, to)


def _alerts() -> p.Plain:
    return p.other(
        "alertlist",
        "Alerts",
        "Warnings and worse that are pending or fire, from the rules in Prometheus; each leads to its runbook. What is told as info, of a "
        "run's own limits, is under Alerts over time.",
        {
            "alertName": "Ravi",
            "alertInstanceLabelFilter": '{severity=~"critical|warning"}',
            "dashboardAlerts": False,
            "groupBy": [],
            "groupMode": "default",
            "maxItems": 20,
            "showInactiveAlerts": False,
            "showInstances": True,
            "sortOrder": 3,
            "stateFilter": {"error": True, "firing": True, "noData": False, "normal": False, "pending": True, "recovering": True},
            "viewMode": "list",
        },
        width=8,
    )


def _told(board: Board) -> list[object]:
    tree = board.to_tree("Its tree")
    return [
        p.lines(
            "Alerts over time",
            "How many alerts of each name were pending or fired. RaviWatchdog always fires: where it is missing, no rule was worked out.",
            "none",
            p.series('sum by (alertname, alertstate) (ALERTS{alertname=~"Ravi.+"})', "{{alertname}} {{alertstate}}"),
            width=12,
            bars=True,
            scraped=True,
        ),
        p.found_traces(
            "Traces in which a limit refused",
            "Traces of the service chosen at the top that hold a refused call. The id leads to the tree of the run, where the refused "
            "call is red.",
            p.search(f"error.type={names.ERROR_LIMIT}", limit=20),
            tree,
        ).height(10),
        p.log_lines(
            "Limit events",
            q.EVENTS_TOLD,
            q.limit_events(),
        ),
    ]
