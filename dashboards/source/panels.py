"""Make panels and their queries, all in one look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from grafana_foundation_sdk.builders import common, dashboard, heatmap, logs, loki, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog import builder, variants
from grafana_foundation_sdk.models import common as shapes
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from ravi_otel import BudgetExhaustedError
from ravi_otel._telemetry import names

Figure = stat.Panel
Lines = timeseries.Panel
Table = table.Panel
Heat = heatmap.Panel
Logs = logs.Panel
Plain = dashboard.Panel
Query = prometheus.Dataquery
Link = dashboard.DashboardLink

P = TypeVar("P", Figure, Lines, Table, Heat, Logs, Plain)

PROMETHEUS: Final = shapes.DataSourceRef(type_val="prometheus", uid="${prometheus}")
JAEGER: Final = shapes.DataSourceRef(type_val="jaeger", uid="${jaeger}")
LOKI: Final = shapes.DataSourceRef(type_val="loki", uid="${loki}")

CALM: Final = ((None, "green"),)
FULLNESS: Final = ((None, "green"), (0.8, "orange"), (1.0, "red"))
ANY_IS_BAD: Final = ((None, "green"), (1e-9, "red"))
ANY_IS_ODD: Final = ((None, "green"), (1e-9, "orange"))
NO_DATA: Final = "no data"
"""What stands where nothing is known: grey, and never a figure or the colour of one."""
_GREY: Final = "#8e8e8e"
_UNKNOWN: Final = model.SpecialValueMap(
    options=model.DashboardSpecialValueMapOptions(
        match=model.SpecialValueMatch.NULL_AND_NAN, result=model.ValueMappingResult(text=NO_DATA, color=_GREY)
    )
)
_ID: Final = model.RegexMap(
    options=model.DashboardRegexMapOptions(pattern="^([0-9a-f]{8})[0-9a-f]{24}$", result=model.ValueMappingResult(text="$1"))
)
"""Of an id its first eight characters: they are enough to tell it by, and what is clicked on is the whole."""
_LEAST_WIDTH: Final = 50
"""Grafana's own 150 pixels put the last of nine columns beyond the edge."""
SCRAPED: Final = "15s"
"""How often Prometheus reads the stack itself; programs send each 60 s, which is what the data source says."""

STOPPED: Final = f"{BudgetExhaustedError.__name__} is one that a limit stopped; the refused call in its trace says {names.ERROR_LIMIT}."
"""What the class of an error says of a run or an agent that a limit has ended."""

Steps = Sequence[tuple[float | None, str]]
Target = builder.Builder[Any]


def link(title: str, uid: str, keep: Sequence[str], panel: int | None, **values: str) -> dashboard.DashboardLink:
    """Make a link to a dashboard, or to one panel of it, with the time shown, the values of the variables in `keep`, and `values`."""
    carried = [f"${{{name}:queryparam}}" for name in keep if name not in values]
    given = [f"var-{name}={value}" for name, value in values.items()]
    alone = [] if panel is None else [f"viewPanel=panel-{panel}"]
    return dashboard.DashboardLink(title).url("&".join([f"/d/{uid}?from=${{__from}}&to=${{__to}}", *carried, *given, *alone]))


def series(expression: str, legend: str = "", *, exemplars: bool = False) -> Query:
    """Make a query over the time shown; with exemplars where its metric carries them."""
    return prometheus.Dataquery().datasource(PROMETHEUS).expr(expression).range().legend_format(legend or "__auto").exemplar(exemplars)


def reading(expression: str, legend: str = "") -> Query:
    """Make a query of one moment, the end of the time shown."""
    return prometheus.Dataquery().datasource(PROMETHEUS).expr(expression).instant().legend_format(legend or "__auto")


def column(expression: str) -> Query:
    """Make a query whose answer is rows of a table."""
    return reading(expression).format(PromQueryFormat.TABLE)


def records(expression: str) -> loki.Dataquery:
    """Make a query of log records."""
    return loki.Dataquery().datasource(LOKI).expr(expression).query_type("range").max_lines(500)


def counted_records(expression: str) -> loki.Dataquery:
    """Make a query of one figure for each group of log records."""
    return loki.Dataquery().datasource(LOKI).expr(expression).query_type("instant")


class _Jaeger(variants.Dataquery):
    def __init__(self, said: Mapping[str, object]) -> None:
        self.said = dict(said)
        self.ref_id: str | None = None

    def to_json(self) -> dict[str, object]:
        """Give what goes into the dashboard."""
        return {**self.said, "refId": self.ref_id or "A", "datasource": JAEGER}


class JaegerQuery(builder.Builder[variants.Dataquery]):
    """Search traces, or get one: the library knows no query of Jaeger's."""

    def __init__(self, **said: object) -> None:
        self._query = _Jaeger(said)

    def build(self) -> variants.Dataquery:
        """Build it."""
        return self._query

    def ref_id(self, name: str) -> JaegerQuery:
        """Name it within its panel."""
        self._query.ref_id = name
        return self


def search(tags: str, limit: int = 50, **more: object) -> JaegerQuery:
    """Search the traces of the chosen service that have a span with these tags, and with those that were typed in."""
    said = {"queryType": "search", "service": "$trace_service", "tags": f"{tags} $trace_tags".strip(), "limit": limit}
    return JaegerQuery(**said, **more)


def _limits(steps: Steps) -> dashboard.ThresholdsConfig:
    found = [model.Threshold(value=value, color=color) for value, color in steps]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(found)


def _dressed(panel: P, title: str, description: str, unit: str, targets: Sequence[Target], *, scraped: bool = False) -> P:
    panel.title(title)
    panel.description(description)
    panel.unit(unit)
    if scraped:
        panel.interval(SCRAPED)
    for place, target in enumerate(targets):
        if scraped and isinstance(target, prometheus.Dataquery):
            target.interval(SCRAPED)
        panel.with_target(target.ref_id(chr(ord("A") + place)))  # type: ignore[attr-defined]  # every query has it, their base not
    return panel


def figure(
    title: str,
    description: str,
    unit: str,
    *targets: Target,
    steps: Steps = CALM,
    width: int = 4,
    decimals: int | None = None,
    scraped: bool = False,
) -> Figure:
    """Make one large figure, 4 high; what is not known is grey. `scraped` says that Prometheus reads the metrics itself."""
    panel = _dressed(stat.Panel().datasource(PROMETHEUS), title, description, unit, targets, scraped=scraped)
    panel.thresholds(_limits(steps)).span(width).height(4)
    panel.color_mode(shapes.BigValueColorMode.VALUE).graph_mode(shapes.BigValueGraphMode.NONE)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    panel.no_value(NO_DATA).mappings([_UNKNOWN])
    return panel if decimals is None else panel.decimals(decimals)


def worded(panel: Figure, text: str, least: float, color: str) -> Figure:
    """Show every value of a figure from `least` on as words."""
    result = model.ValueMappingResult(text=text, color=color)
    return panel.mappings([_UNKNOWN, model.RangeMap(options=model.DashboardRangeMapOptions(from_val=least, result=result))])


def lines(
    title: str,
    description: str,
    unit: str,
    *targets: Target,
    width: int = 8,
    steps: Steps | None = None,
    bars: bool = False,
    scraped: bool = False,
) -> Lines:
    """Make lines over time, 10 high, or stacked bars; with `steps` there are dashed lines, `scraped` is that of a figure."""
    panel = _dressed(timeseries.Panel().datasource(PROMETHEUS), title, description, unit, targets, scraped=scraped)
    panel.span(width).height(10).min(0).line_width(1).fill_opacity(60 if bars else 8)
    panel.no_value(NO_DATA)
    panel.show_points(shapes.VisibilityMode.AUTO).span_nulls(False)
    legend = common.VizLegendOptions().display_mode(shapes.LegendDisplayMode.TABLE).placement(shapes.LegendPlacement.BOTTOM)
    calcs, by = (["sum", "max"], "Total") if bars else (["lastNotNull", "max"], "Last *")
    panel.legend(legend.show_legend(True).calcs(calcs).sort_by(by).sort_desc(True))
    panel.tooltip(common.VizTooltipOptions().mode(shapes.TooltipDisplayMode.MULTI).sort(shapes.SortOrder.DESCENDING))
    if bars:
        panel.draw_style(shapes.GraphDrawStyle.BARS).line_width(0)
        panel.stacking(common.StackingConfig().mode(shapes.StackingMode.NORMAL).group("A"))
    if steps is not None:
        panel.thresholds(_limits(steps))
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(shapes.GraphThresholdsStyleMode.DASHED))
    return panel


def spread(title: str, description: str, unit: str, buckets: str, width: int = 8) -> Heat:
    """Make a heat map of a histogram's buckets, 10 high."""
    query = series(buckets, "{{le}}", exemplars=True).format(PromQueryFormat.HEATMAP)
    panel = _dressed(heatmap.Panel().datasource(PROMETHEUS), title, description, unit, [query])
    return panel.span(width).height(10).calculate(False).y_axis(heatmap.YAxisConfig().unit(unit))


def rows(
    title: str,
    description: str,
    unit: str,
    targets: Sequence[Target],
    names: Mapping[str, str],
    *,
    width: int = 12,
    worst: str = "",
    scraped: bool = False,
) -> Table:
    """Make a table, 9 high, of the fields in `names`, under the names given there and in their order, sorted by `worst`, greatest first.

    The figures of the queries are the fields `Value #A`, `Value #B` and so on, or `Value` where there is one query.
    """
    panel = _dressed(table.Panel().datasource(PROMETHEUS), title, description, unit, targets, scraped=scraped)
    panel.span(width).height(9).filterable(True).min_width(_LEAST_WIDTH)
    if len(targets) > 1:
        panel.with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
    panel.with_transformation(model.DataTransformerConfig(id_val="filterFieldsByName", options={"include": {"names": list(names)}}))
    organize = {"indexByName": {name: place for place, name in enumerate(names)}, "renameByName": dict(names)}
    panel.with_transformation(model.DataTransformerConfig(id_val="organize", options=organize))
    if worst:
        panel.sort_by([common.TableSortByFieldState().display_name(worst).desc(True)])
    return panel


def widened(panel: Table, widths: Mapping[str, int]) -> Table:
    """Give columns of a table their widths in pixels; the others share what is left."""
    for name, width in widths.items():
        panel.override_by_name(name, [model.DynamicConfigValue("custom.width", width)])
    return panel


def nameless(panel: Table, column_name: str, text: str) -> Table:
    """Say in words what a row without a name in a column is."""
    unnamed = model.SpecialValueMap(
        options=model.DashboardSpecialValueMapOptions(match=model.SpecialValueMatch.EMPTY, result=model.ValueMappingResult(text=text))
    )
    return panel.override_by_name(column_name, [model.DynamicConfigValue("mappings", [unnamed])])


def shortened(panel: Table, column_name: str) -> Table:
    """Make a column of ids short."""
    widened(panel, {column_name: 90})
    return panel.override_by_name(column_name, [model.DynamicConfigValue("mappings", [_ID])])


def dressed(
    panel: Table, column_name: str, unit: str, steps: Steps | None = None, *, gauge: bool = False, most: float | None = None
) -> Table:
    """Give a column of a table its unit, its colours, and where wanted a bar."""
    properties = [model.DynamicConfigValue("unit", unit)]
    if steps is not None:
        properties.append(model.DynamicConfigValue("thresholds", _limits(steps).build()))
        properties.append(model.DynamicConfigValue("color", {"mode": "thresholds"}))
    if gauge:
        options = shapes.TableBarGaugeCellOptions(mode=shapes.BarGaugeDisplayMode.BASIC, value_display_mode=shapes.BarGaugeValueMode.TEXT)
        properties.append(model.DynamicConfigValue("custom.cellOptions", options))
    elif steps is not None:
        properties.append(model.DynamicConfigValue("custom.cellOptions", {"type": "color-text"}))
    if most is not None:
        properties += [model.DynamicConfigValue("min", 0), model.DynamicConfigValue("max", most)]
    return panel.override_by_name(column_name, properties)


def linked(panel: Table, column_name: str, *links: dashboard.DashboardLink) -> Table:
    """Put links on a column of a table."""
    return panel.override_by_name(column_name, [model.DynamicConfigValue("links", [each.build() for each in links])])


def found_traces(
    title: str, description: str, query: JaegerQuery, trees: Sequence[dashboard.DashboardLink], *, width: int = 12, slowest: bool = False
) -> Table:
    """Make a table of traces, 9 high, each with links to its tree and its run."""
    panel = _dressed(table.Panel().datasource(JAEGER), title, description, "none", [query])
    panel.span(width).height(9).filterable(True).min_width(_LEAST_WIDTH)
    widened(panel, {"Start time": 200, "Duration": 90})
    panel.sort_by([common.TableSortByFieldState().display_name("Duration" if slowest else "Start time").desc(True)])
    return linked(shortened(panel, "traceID"), "traceID", *trees)


def log_lines(title: str, description: str, expression: str, *, width: int = 24) -> Logs:
    """Make a list of log records, 10 high, newest first, each with its attributes."""
    panel = _dressed(logs.Panel().datasource(LOKI), title, description, "none", [records(expression)])
    panel.span(width).height(10).show_time(True).wrap_log_message(True).enable_log_details(True)
    return panel.sort_order(shapes.LogsSortOrder.DESCENDING)


def other(
    kind: str, title: str, description: str, options: Mapping[str, object], *targets: Target, width: int = 12, height: int = 9
) -> Plain:
    """Make a panel of a kind that the library has no builder for."""
    panel = _dressed(dashboard.Panel().type(kind), title, description, "none", targets)
    return panel.options(dict(options)).span(width).height(height)
