"""Put a dashboard together: its variables, its events, its links, and its rows of panels."""

from __future__ import annotations

from collections.abc import Sequence
from json import dumps, loads
from typing import Any, Final

from grafana_foundation_sdk.builders import dashboard, loki
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model

from dashboards.source import panels, queries
from dashboards.source.names import prometheus as name_of
from ravi_otel._telemetry import names

TAG: Final = "ravi-otel"
BUDGETS, CALLS, RUNS, HEALTH = "ravi-budgets", "ravi-calls", "ravi-runs", "ravi-health"

SOURCES: Final = ("prometheus", "jaeger", "loki")
_OF_WORK: Final = (*SOURCES, "service", "environment", "agent", "model", "tenant", "team", "trace_service", "trace_tags", "page")
VARIABLES: Final = {
    BUDGETS: _OF_WORK,
    CALLS: (*_OF_WORK, "convention"),
    RUNS: (*_OF_WORK, "trace"),
    HEALTH: ("prometheus", "service", "environment"),
}
"""The variables of each dashboard, each of which filters something there; a link carries over what both ends have."""

PAGE: Final = "http://127.0.0.1:8411"
"""Where `ravi-otel ui` serves its page unless it is told otherwise."""

WIDTH: Final = 24
TREE: Final = 1000
"""The id of the panel with a run's tree: links show it alone, since its row is closed."""

_OF_LIMITS: Final = name_of(names.LIMIT_USED)
_OF_COST: Final = name_of(names.COST)
_OF_AGENTS: Final = f"{name_of(names.AGENT_DURATION)}_count"
_OF_CALLS: Final = (f"{name_of(names.CALL_DURATION)}_count", f"{name_of(names.INFERENCE_DURATION)}_count")
_THERE: Final = f'{queries.SERVICE}=~"$service",{queries.ENVIRONMENT}=~"$environment"'

_ALL: Final = model.VariableOption(text="All", value="$__all", selected=True)


def _source(name: str, title: str) -> dashboard.DatasourceVariable:
    chosen = model.VariableOption(text=title, value=f"ravi-{name}", selected=True)
    said = f"The {title} data source that the panels ask."
    return dashboard.DatasourceVariable(name).label(title).description(said).type(name).current(chosen)


def _values(name: str, title: str, said: str, query: str, every: str = ".*") -> dashboard.QueryVariable:
    made = dashboard.QueryVariable(name).label(title).description(said).datasource(panels.PROMETHEUS)
    made.query({"query": query, "refId": f"{name}-values", "qryType": 1}).definition(query)
    made.refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(model.VariableSort.ALPHABETICAL_ASC)
    return made.multi(True).include_all(True).all_value(every).current(_ALL)


def _trace_service() -> dashboard.QueryVariable:
    query = f"label_values({{{queries.ANY_TOLD}}}, {queries.SERVICE})"
    made = dashboard.QueryVariable("trace_service").label("Traces of").datasource(panels.PROMETHEUS)
    made.description("The service whose traces are searched: Jaeger searches those of one at a time.")
    made.query({"query": query, "refId": "trace_service-values", "qryType": 1}).definition(query)
    return made.refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(model.VariableSort.ALPHABETICAL_ASC)


def _text(name: str, title: str, said: str, usual: str = "") -> dashboard.TextBoxVariable:
    chosen = model.VariableOption(text=usual, value=usual, selected=True)
    return dashboard.TextBoxVariable(name).label(title).description(said).default_value(usual).current(chosen)


def _convention() -> dashboard.CustomVariable:
    any_of = "operation|inference|embeddings"
    said = (
        "Under which names services tell their calls. Leave it as it is, unless a service sends both at once "
        "(OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental/dup): then choose the released ones, or its calls are told twice."
    )
    made = dashboard.CustomVariable("convention").label("Names").description(said)
    made.values(f"released or latest : {any_of}, released only : operation")
    chosen = model.VariableOption(text="released or latest", value=any_of, selected=True)
    return made.current(chosen).options([chosen, model.VariableOption(text="released only", value="operation", selected=False)])


def _variables() -> dict[str, Any]:
    cost = f"{_OF_COST}{{{_THERE}}}"
    named = f'{{__name__=~"{_OF_AGENTS}|{_OF_COST}|{_OF_LIMITS}",{_THERE}}}'
    asked = f'{{__name__=~"{"|".join((*_OF_CALLS, _OF_COST))}",{_THERE}}}'
    return {
        **{name: _source(name, name.capitalize()) for name in SOURCES},
        "service": _values(
            "service", "Service", "service.name of a program.", f"label_values({{{queries.ANY_TOLD}}}, {queries.SERVICE})", ".+"
        ),
        "environment": _values(
            "environment",
            "Environment",
            "deployment.environment.name of a program, where it has one.",
            f'label_values({{{queries.ANY_TOLD},{queries.SERVICE}=~"$service"}}, {queries.ENVIRONMENT})',
        ),
        "agent": _values("agent", "Agent", "Agents by name: it filters what is told by agent.", f"label_values({named}, {queries.AGENT})"),
        "model": _values(
            "model", "Model", "The model that was asked for: it filters calls, tokens and costs.", f"label_values({asked}, {queries.MODEL})"
        ),
        "tenant": _values(
            "tenant",
            "Tag tenant",
            f"{_tag('tenant')} It is not the tenant that a limit or an alert names, which is tenant_id.",
            f"label_values({cost}, {queries.TENANT})",
        ),
        "team": _values("team", "Tag team", _tag("team"), f"label_values({cost}, {queries.TEAM})"),
        "convention": _convention(),
        "trace_service": _trace_service(),
        "trace_tags": _text(
            "trace_tags",
            "Span has",
            "What spans of the traces found must have besides, as in ravi.tenant.id=acme gen_ai.agent.name=writer.",
        ),
        "trace": _text("trace", "Trace", "The id of the trace whose tree is shown."),
        "page": _text("page", "Page", "Where `ravi-otel ui` serves its page, without the token: runs and traces lead there.", PAGE),
    }


def _tag(name: str) -> str:
    return f"The tag {name} of runs, where they have one, as by run(tags=...): it filters costs alone."


def _events(event: str, title: str, color: str, *, shown: bool) -> dashboard.AnnotationQuery:
    told = queries.limit_events(f'event_name="{event}"', queries.OF_SCOPES)
    query = loki.Dataquery().expr(told).query_type("range").max_lines(200).ref_id("Anno")
    made = dashboard.AnnotationQuery().name(title).datasource(panels.LOKI).enable(shown).icon_color(color).target(query)
    limit = "{{ravi_limit_kind}} of {{ravi_limit_scope}}: {{ravi_limit_used}} of {{ravi_limit_threshold}}"
    made.expr(told)
    return (
        made.title_format(f"{title}: {{{{gen_ai_agent_name}}}}")
        .text_format(limit)
        .tag_keys("service_name,gen_ai_agent_name,ravi_limit_kind")
    )


class Board:
    """Hold a dashboard while rows are added to it; ids and places are given in their order."""

    def __init__(self, uid: str, title: str, description: str, since: str = "now-3h") -> None:
        self._has = VARIABLES[uid]
        self._next, self._y = 1, 0
        self._built = dashboard.Dashboard(title).uid(uid).description(description).tags([TAG]).timezone("browser").refresh("30s")
        self._built.time(since, "now").tooltip(model.DashboardCursorSync.CROSSHAIR).readonly()
        known = _variables()
        for name in self._has:
            self._built.with_variable(known[name])
        if "agent" in self._has:
            self._built.annotation(_events(names.EXCEEDED_EVENT, "Limit exceeded", "red", shown=True))
            self._built.annotation(_events(names.NEARING_EVENT, "Limit near", "orange", shown=False))
        others = dashboard.DashboardLink("Dashboards").type(model.DashboardLinkType.DASHBOARDS).tags([TAG])
        self._built.link(others.as_dropdown(False).include_vars(True).keep_time(True).icon("dashboard"))

    def to(self, uid: str, title: str, **values: str) -> dashboard.DashboardLink:
        """Make a link to one of the dashboards, with `values` for its variables in place of those that are chosen."""
        return panels.link(title, uid, [name for name in self._has if name in VARIABLES[uid]], None, **values)

    def to_tree(self, title: str) -> tuple[dashboard.DashboardLink, ...]:
        """Make links to the tree of the trace whose id is clicked on, alone on the screen, and to its run on the page."""
        there = [name for name in self._has if name in VARIABLES[RUNS]]
        return panels.link(title, RUNS, there, TREE, trace="${__value.raw}"), self.to_page("Its run on the page")

    def to_page(self, title: str) -> dashboard.DashboardLink:
        """Make a link to the run on the page of `ravi-otel ui`, by the id of the run or of its trace."""
        return dashboard.DashboardLink(title).url("${page:raw}/runs/${__value.raw}")

    def first(self, title: str, *of_row: Any) -> None:
        """Add the row that is open, which fills the first screen."""
        self._built.with_panel(self._placed(_Heading(title), self._next, 0, self._y, WIDTH, 1))
        self._next += 1
        self._y += 1
        inside, self._y = self._laid(of_row, self._y)
        for panel in inside:
            self._built.with_panel(panel)

    def row(self, title: str, *of_row: Any) -> None:
        """Add a row that is closed: it asks nothing until it is opened."""
        heading = self._next
        self._next += 1
        inside, _ = self._laid(of_row, self._y + 1)
        self._built.with_panel(self._placed(_Heading(title, inside), heading, 0, self._y, WIDTH, 1))
        self._y += 1

    def _laid(self, of_row: Sequence[Any], y: int) -> tuple[list[Any], int]:
        """Lay panels from left to right, a new line where the next one has no room; give them, and where the line after them is."""
        inside: list[Any] = []
        x = tallest = 0
        for panel in of_row:
            built = panel.build()
            place = built.grid_pos
            if x + place.w > WIDTH:
                x, y, tallest = 0, y + tallest, 0
            inside.append(self._placed(panel, built.id_val or self._next, x, y, place.w, place.h))
            self._next += 1
            x, tallest = x + place.w, max(tallest, place.h)
        return inside, y + tallest

    @staticmethod
    def _placed(panel: Any, panel_id: int, x: int, y: int, width: int, height: int) -> Any:
        panel.id(panel_id)
        panel.grid_pos(model.GridPos(x=x, y=y, w=width, h=height))
        return panel

    def written(self) -> str:
        """Give the file."""
        made = loads(dumps(self._built.build(), cls=JSONEncoder))
        made.pop("id", None)
        for shown in (*made["links"], *made.get("annotations", {}).get("list", ())):
            shown.pop("placement")  # the library's default hides them in a menu
        for panel in made["panels"]:
            for each in (panel, *panel.get("panels", ())):
                _slim(each)
        return dumps(made, indent=2, ensure_ascii=False) + "\n"


def _slim(panel: dict[str, Any]) -> None:
    """Leave of a data link what a data link has, and of a table what a table has: the library adds what Grafana does not know."""
    if panel["type"] == "table":
        panel["options"].pop("footer", None)
    config = panel.get("fieldConfig", {"defaults": {}, "overrides": []})
    found = [
        config["defaults"],
        *({each["id"]: each["value"]} for rule in config["overrides"] for each in rule["properties"] if "value" in each),
    ]
    for each in found:
        for link in each.get("links", ()):
            for key in set(link) - {"title", "url"}:
                del link[key]


class _Heading(dashboard.Panel):
    """Be a row's heading, with the panels in it if it is closed; the library's own row places its panels in its own way."""

    def __init__(self, title: str, closed: Sequence[Any] = ()) -> None:
        super().__init__()
        self.type("row")
        self.title(title)
        self._closed = closed

    def build(self) -> Any:
        """Build it as a row."""
        made = super().build()
        inside = [panel.build() for panel in self._closed]
        return model.RowPanel(collapsed=bool(inside), title=made.title, id_val=made.id_val or 0, grid_pos=made.grid_pos, panels=inside)
