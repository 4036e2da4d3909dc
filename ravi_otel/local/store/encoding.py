"""Write what the SDK recorded as OTLP JSON: ids in hex, enums as numbers, 64-bit integers as text.

Each function gives text, ready to be put together by `line`; putting strings together costs half of what
dictionaries and a JSON encoder do. Lone surrogates stay in it: whoever makes bytes of it replaces them.

Spans of other libraries are not written whole: `foreign` says what is kept of them.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from json.encoder import encode_basestring as _quoted
from typing import Any, Final, Literal

from ravi_otel.local.store import foreign

Signal = Literal["traces", "metrics", "logs"]

VALUE_BYTES: Final = 4096
"""How long an attribute's value may be."""

HEAVY: Final = 8192
"""How many characters of text make a record heavy."""

_MANY: Final = 100
_ENVELOPE: Final[Mapping[Signal, tuple[str, str, str]]] = {
    "traces": ("resourceSpans", "scopeSpans", "spans"),
    "metrics": ("resourceMetrics", "scopeMetrics", "metrics"),
    "logs": ("resourceLogs", "scopeLogs", "logRecords"),
}
_INT64: Final = 2**63
_DEEPEST: Final = 16
_MOST_KEYS: Final = 2048
_REMOTE_KNOWN: Final = 0x100
_REMOTE: Final = 0x200

_keys: dict[str, str] = {}


def line(signal: Signal, groups: Iterable[tuple[str, str, Sequence[str]]]) -> str:
    """Make one line of a file: `groups` are a resource, a scope with its schema, and the records made inside both."""
    by_resource: dict[str, list[str]] = {}
    resources, scopes, records = _ENVELOPE[signal]
    for resource, scope, texts in groups:
        by_resource.setdefault(resource, []).append(f'{{{scope},"{records}":[{",".join(texts)}]}}')
    parts = (f'{{{resource},"{scopes}":[{",".join(found)}]}}' for resource, found in by_resource.items())
    return f'{{"{resources}":[{",".join(parts)}]}}\n'


def resource(about: Any) -> str:
    """Write a resource as the two members `resource` and `schemaUrl`."""
    if about is None:
        return '"resource":{}'
    return f'"resource":{{"attributes":{attributes(about.attributes, VALUE_BYTES)}}}{_schema(about)}'


def scope(about: Any) -> str:
    """Write an instrumentation scope as the two members `scope` and `schemaUrl`."""
    if about is None:
        return '"scope":{}'
    version = f',"version":{_text(about.version, VALUE_BYTES)}' if about.version else ""
    known = f',"attributes":{attributes(about.attributes, VALUE_BYTES)}' if about.attributes else ""
    return f'"scope":{{"name":{_text(about.name or "", VALUE_BYTES)}{version}{known}}}{_schema(about)}'


def _schema(about: Any) -> str:
    url = getattr(about, "schema_url", None)
    return f',"schemaUrl":{_text(url, VALUE_BYTES)}' if url else ""


def span(of: Any, most: int = VALUE_BYTES) -> str:
    """Write one ended span, one of another library without what may be content; `most` is the bytes a value may have."""
    whole = not foreign.is_foreign(of.instrumentation_scope)
    context = of.context
    status = of.status
    state = f',"traceState":{_text(_state(context.trace_state), most)}' if context.trace_state else ""
    parent = f',"parentSpanId":"{of.parent.span_id:016x}"' if of.parent else ""
    told = f',"message":{_text(status.description, most)}' if status.description and whole else ""
    about, dropped = _about(of, most, whole=whole)
    events, links = (_event, _link) if whole else (_foreign_event, _foreign_link)
    return (
        f'{{"traceId":"{context.trace_id:032x}","spanId":"{context.span_id:016x}"{state}{parent},"flags":{_flags(of.parent)}'
        f',"name":{_text(of.name, most)},"kind":{of.kind.value + 1}'
        f',"startTimeUnixNano":"{of.start_time}","endTimeUnixNano":"{of.end_time}"'
        f',"attributes":{about}{dropped}'
        f"{_listed('events', of.events, events, most)}{_dropped('Events', of.dropped_events)}"
        f"{_listed('links', of.links, links, most)}{_dropped('Links', of.dropped_links)}"
        f',"status":{{"code":{status.status_code.value}{told}}}}}'
    )


def _about(of: Any, most: int, *, whole: bool) -> tuple[str, str]:
    """Write the attributes of a span, an event or a link, and how many are not there."""
    if whole:
        return attributes(of.attributes, most), _dropped("Attributes", of.dropped_attributes)
    kept = foreign.kept(of.attributes)
    return attributes(kept, most), _dropped("Attributes", of.dropped_attributes + foreign.left_out(of.attributes, kept))


def _event(of: Any, most: int, *, whole: bool = True) -> str:
    about, dropped = _about(of, most, whole=whole)
    known = f',"attributes":{about}' if of.attributes else ""
    return f'{{"timeUnixNano":"{of.timestamp}","name":{_text(of.name, most)}{known}{dropped}}}'


def _foreign_event(of: Any, most: int) -> str:
    return _event(of, most, whole=False)


def _link(of: Any, most: int, *, whole: bool = True) -> str:
    context = of.context
    state = f',"traceState":{_text(_state(context.trace_state), most)}' if context.trace_state else ""
    about, dropped = _about(of, most, whole=whole)
    known = f',"attributes":{about}' if of.attributes else ""
    return f'{{"traceId":"{context.trace_id:032x}","spanId":"{context.span_id:016x}"{state}{known}{dropped},"flags":{_flags(context)}}}'


def _foreign_link(of: Any, most: int) -> str:
    return _link(of, most, whole=False)


def _listed(name: str, found: Sequence[Any], write: Callable[[Any, int], str], most: int) -> str:
    return f',"{name}":[{",".join([write(each, most) for each in found])}]' if found else ""


def _dropped(what: str, number: int) -> str:
    return f',"dropped{what}Count":{number}' if number else ""


def _flags(context: Any) -> int:
    return _REMOTE_KNOWN | _REMOTE if context is not None and context.is_remote else _REMOTE_KNOWN


def _state(trace_state: Any) -> str:
    return ",".join(f"{key}={value}" for key, value in trace_state.items())


def log(of: Any, most: int = VALUE_BYTES) -> str:
    """Write one log record, as the SDK hands it to a processor."""
    record = of.log_record
    severity = record.severity_number
    parts = [
        f'"timeUnixNano":"{record.timestamp}"' if record.timestamp else "",
        f'"observedTimeUnixNano":"{record.observed_timestamp}"' if record.observed_timestamp else "",
        f'"severityNumber":{severity.value}' if severity is not None else "",
        f'"severityText":{_text(record.severity_text, most)}' if record.severity_text else "",
        f'"eventName":{_text(record.event_name, most)}' if record.event_name else "",
        f'"body":{_value(record.body, most, 0)}' if record.body is not None else "",
        f'"attributes":{attributes(record.attributes, most)}' if record.attributes else "",
        f'"droppedAttributesCount":{of.dropped_attributes}' if of.dropped_attributes else "",
        f'"flags":{int(record.trace_flags)}' if record.trace_flags else "",
        f'"traceId":"{record.trace_id:032x}"' if record.trace_id else "",
        f'"spanId":"{record.span_id:016x}"' if record.span_id else "",
    ]
    return f"{{{','.join(filter(None, parts))}}}"


def record(signal: Signal, of: Any, most: int) -> str:
    """Write a span or a log record."""
    return span(of, most) if signal == "traces" else log(of, most)


def is_heavy(of: Any) -> bool:
    """Tell whether a span holds so much that many like it, waiting, would fill the memory."""
    found: Any = getattr(of, "attributes", None)
    if not found:
        return False
    length = 0
    values: list[Any] = list(found.copy().values())
    for value in values:
        kind = value.__class__
        if kind is str:
            length += len(value)
        elif kind is tuple and len(value) < _MANY:
            length += sum(len(each) for each in value if type(each) is str)
        elif kind is not int and kind is not float and kind is not bool:
            return True
    return length > HEAVY or len(of.events) > _MANY


def metric(of: Any, most: int = VALUE_BYTES) -> str | None:
    """Write one metric with its points; None for one without points, or of a kind this version does not know."""
    data = of.data
    points = list(data.data_points)
    if hasattr(data, "is_monotonic"):
        kind, write, more = "sum", _number_point, f',"isMonotonic":{"true" if data.is_monotonic else "false"}'
    elif not hasattr(data, "aggregation_temporality"):
        kind, write, more = "gauge", _number_point, ""
    else:
        kind, write, more = ("exponentialHistogram", _exponential_point, "") if points and hasattr(points[0], "scale") else _HISTOGRAM
    if not points:
        return None
    how = f'"aggregationTemporality":{int(data.aggregation_temporality)},' if kind != "gauge" else ""
    told = f',"description":{_text(of.description, most)}' if of.description else ""
    unit = f',"unit":{_text(of.unit, most)}' if of.unit else ""
    written = ",".join([write(point, most, kind) for point in points])
    return f'{{"name":{_text(of.name, most)}{told}{unit},"{kind}":{{{how}"dataPoints":[{written}]{more}}}}}'


def _number_point(of: Any, most: int, kind: str) -> str:
    start = f'"startTimeUnixNano":"{of.start_time_unix_nano}",' if kind == "sum" and of.start_time_unix_nano else ""
    return f"{{{start}{_point(of, most)},{_measured(of.value)}}}"


def _histogram_point(of: Any, most: int, kind: str) -> str:
    del kind
    bounds = ",".join([_double(bound) for bound in of.explicit_bounds])
    return f'{{{_counted(of, most)},"bucketCounts":{_counts(of.bucket_counts)},"explicitBounds":[{bounds}]}}'


def _exponential_point(of: Any, most: int, kind: str) -> str:
    del kind
    sides = "".join(
        f',"{name}":{{"offset":{side.offset},"bucketCounts":{_counts(side.bucket_counts)}}}'
        for name, side in (("positive", of.positive), ("negative", of.negative))
        if side.bucket_counts
    )
    return f'{{{_counted(of, most)},"scale":{of.scale},"zeroCount":"{of.zero_count}","flags":{of.flags}{sides}}}'


_HISTOGRAM: Final = ("histogram", _histogram_point, "")


def _counted(of: Any, most: int) -> str:
    known = (("sum", of.sum), ("min", of.min), ("max", of.max))
    limits = "".join(f',"{name}":{_double(value)}' for name, value in known if value is not None)
    return f'"startTimeUnixNano":"{of.start_time_unix_nano}",{_point(of, most)},"count":"{of.count}"{limits}'


def _point(of: Any, most: int) -> str:
    known = f'"attributes":{attributes(of.attributes, most)},' if of.attributes else ""
    exemplars = f',"exemplars":[{",".join([_exemplar(each, most) for each in of.exemplars])}]' if of.exemplars else ""
    return f'{known}"timeUnixNano":"{of.time_unix_nano}"{exemplars}'


def _exemplar(of: Any, most: int) -> str:
    where = f'"spanId":"{of.span_id:016x}","traceId":"{of.trace_id:032x}",' if of.span_id is not None and of.trace_id is not None else ""
    known = f'"filteredAttributes":{attributes(of.filtered_attributes, most)},' if of.filtered_attributes else ""
    return f'{{{where}{known}"timeUnixNano":"{of.time_unix_nano}",{_measured(of.value)}}}'


def _measured(value: Any) -> str:
    return f'"asInt":"{value}"' if isinstance(value, int) else f'"asDouble":{_double(value)}'


def _counts(counts: Iterable[int]) -> str:
    written = '","'.join(map(str, counts))
    return f'["{written}"]' if written else "[]"


def attributes(found: Any, most: int) -> str:
    """Write attributes as OTLP's list of keys and values; a value that cannot be written is left out."""
    if not found:
        return "[]"
    parts: list[str] = []
    for key, value in found.copy().items():  # the copy is a plain dict: reading the SDK's own takes its lock for every key
        try:
            written = f'{{"stringValue":{_text(value, most)}}}' if type(value) is str else _value(value, most, 0)
            parts.append(f'{{"key":{_keys.get(key) or _key(key, most)},"value":{written}}}')
        except (TypeError, ValueError, OverflowError):  # as live export does
            continue
    return f"[{','.join(parts)}]"


def _key(key: str, most: int) -> str:
    written = _text(key, most)
    if len(_keys) < _MOST_KEYS:
        _keys[key] = written
    return written


def _value(value: Any, most: int, depth: int) -> str:  # noqa: PLR0911 - one way out a kind
    """Write a value as OTLP's AnyValue; what it has no kind for is an empty one."""
    if isinstance(value, str):
        return f'{{"stringValue":{_text(value, most)}}}'
    if isinstance(value, bool):
        return '{"boolValue":true}' if value else '{"boolValue":false}'
    if isinstance(value, int):
        return f'{{"intValue":"{int(value)}"}}' if -_INT64 <= value < _INT64 else f'{{"stringValue":"{int(value)}"}}'
    if isinstance(value, float):
        return f'{{"doubleValue":{_double(value)}}}'
    if isinstance(value, bytes):
        return f'{{"bytesValue":"{base64.b64encode(value[:most]).decode("ascii")}"}}'
    if depth < _DEEPEST and isinstance(value, Mapping):
        pairs: list[tuple[Any, Any]] = list(value.items())  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]  # whatever a program recorded
        parts = _within(((f'{{"key":{_text(str(key), most)},"value":', "}", each) for key, each in pairs), most, depth)
        return f'{{"kvlistValue":{{"values":[{parts}]}}}}'
    if depth < _DEEPEST and isinstance(value, Sequence):
        items: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]  # whatever a program recorded
        return f'{{"arrayValue":{{"values":[{_within((("", "", each) for each in items), most, depth)}]}}}}'
    return "{}"


def _within(items: Iterable[tuple[str, str, Any]], most: int, depth: int) -> str:
    """Write the members of a list or mapping as far as `most` bytes go."""
    parts: list[str] = []
    left = most
    for before, after, item in items:
        if left <= 0:
            break
        written = f"{before}{_value(item, left, depth + 1)}{after}"
        left -= max(_LEAST, len(written) - _WRAPPING)
        parts.append(written)
    return ",".join(parts)


_WRAPPING: Final = len('{"stringValue":""}')
_LEAST: Final = 8  # a member that is written short takes memory and room too


def _double(value: float) -> str:
    number = float(value)
    if math.isfinite(number):
        return repr(number)
    return '"NaN"' if math.isnan(number) else '"Infinity"' if number > 0 else '"-Infinity"'


def _text(value: str, most: int) -> str:
    """Quote a text, cut at `most` bytes of UTF-8."""
    if len(value) * 4 > most and (len(value) > most or not value.isascii()):
        value = value[:most].encode("utf-8", "replace")[:most].decode("utf-8", "ignore")
    return _quoted(value)
