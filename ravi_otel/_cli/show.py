"""Show one stored run, one scope of it, or one call."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from ravi_otel._cli.frame import NO_CONTENT, named, open_queries, print_legend, print_line, print_lost, print_note, store_option
from ravi_otel._cli.run import run_facts
from ravi_otel._cli.runs import outcome
from ravi_otel._local.answers import CallView, Json, RunRow, objects_of
from ravi_otel._local.queries import Queries
from ravi_otel._local.render import console, render
from ravi_otel._local.tree import Leaf
from ravi_otel._local.wording import amount, clean, count, money

_MOST_NOTES: Final = 20
_MOST_TEXT: Final = 4_000
_MOST_CALLS: Final = 200


@click.command(short_help="Show a stored run as a tree, or whatever an id names.")
@click.argument("id_", metavar="[ID]", required=False)
@click.option("--content", is_flag=True, help="Also what was said, where that was kept.")
@click.option("--json", "json_too", is_flag=True, help="Print JSON.")
@store_option
def show(*, id_: str | None, content: bool, json_too: bool, place: Path | None) -> None:
    """Show a stored run as `ravi-otel run` showed it at its end: who called what, and how full each budget is.

    ID is any that an error, a log line, a span or the page shows: of a run, an agent, a call, a tool call, a trace or a span, whole or its
    first 4 characters or more (of what was launched also its last). The latest run when it is left out.
    """
    with open_queries(place) as queries:
        found = named(queries, id_)
        if found.kind in ("call", "tool"):
            _show_call(queries.call(found.id), content=content, json_too=json_too)
        else:
            run = found.id if found.run is None else found.run
            _show_run(queries, run, found.id if found.kind == "scope" else None, content=content, json_too=json_too)


# -- a run --------------------------------------------------------------------------------------------------------


def _show_run(queries: Queries, run: str, scope: str | None, *, content: bool, json_too: bool) -> None:
    record = queries.record(run, scope=scope)
    print_lost([record.head])
    calls = [node.id for node, _ in record.walk() if isinstance(node, Leaf)] if content else []
    said = {call: view for call in calls[:_MOST_CALLS] if (view := queries.call(call)).captured}
    if json_too:
        document = {**run_facts(queries.store, record), **record.as_json()}
        document |= {"content": {call: _said(view) for call, view in said.items()}} if content else {}
        click.echo(json.dumps(document, indent=2, allow_nan=False))
        return
    _head(record.head, record.launch)
    render(record, console())
    for view in said.values():
        print_line("")
        print_line(_title(view), "bold")
        _conversation(view)
    if content and not said:
        print_note(NO_CONTENT)
    elif len(calls) > _MOST_CALLS:
        print_note(f"Of {len(calls):,} calls the first {_MOST_CALLS} are looked at. `ravi-otel show CALL --content` shows any other.")


def _head(run: RunRow, launch: Json | None) -> None:
    if launch is None:
        print_line(f"{clean(run.run, 200)}  {clean(run.name)}  {_ended(run)}", "bold", wrap=True)
        told = [("user", run.user), ("tenant", run.tenant), ("session", run.session), ("trace", run.trace), *run.tags.items()]
        words = [f"{clean(name, 40)} {clean(value, 60)}" for name, value in told if value]
        if words:
            print_line(" · ".join(words), "dim", wrap=True)
        print_line("")
        return
    status = "" if run.exit_status is None else f", exit status {run.exit_status}"
    observed = ", only observed: nothing was refused" if launch.get("observe") else ""
    print_line(f"{clean(run.run, 200)}  {clean(run.name)}  {clean(run.outcome, 20)}{status}{observed}", "bold", wrap=True)
    for note in launch.get("notes", [])[:_MOST_NOTES]:
        print_line(clean(str(note), 400), "yellow", wrap=True)
    print_line("")


def _ended(run: RunRow) -> str:
    reason = clean(run.stop_reason, 60)
    return outcome(run) if reason in ("", "success", run.status) else f"{outcome(run)} {reason}"


# -- a call -------------------------------------------------------------------------------------------------------


def _show_call(view: CallView, *, content: bool, json_too: bool) -> None:
    if json_too:
        document = asdict(view)
        if not content:
            for name in ("system", "tools", "messages", "output", "arguments", "result"):
                document.pop(name)
        click.echo(json.dumps(document, indent=2, allow_nan=False))
        return
    print_line(_title(view), "bold")
    lines = list(_lines(view))
    for line in lines:
        print_line(line)
    print_legend(lines[1:2])
    if content and view.captured:
        print_line("")
        _conversation(view)
    elif content:
        print_note(NO_CONTENT)
    elif view.captured:
        print_line("What was said was kept: --content shows it.", "dim")


def _title(view: CallView) -> str:
    node = view.node
    ended = node.status if node.error_type is None else f"{node.status}, {clean(node.error_type, 40)}"
    return f"{clean(node.id, 60)}  {node.title}  {ended}  {node.ms_text or '?'} ms"


def _lines(view: CallView) -> Iterator[str]:
    node, facts = view.node, view.facts
    whose = [("run", view.run), ("agent", view.agent), ("user", view.user), ("tenant", view.tenant), ("session", view.session)]
    ids = [("trace", view.trace), ("span", view.span), ("response", facts.get("response_id")), ("request", facts.get("request_id"))]
    yield " · ".join(f"{name} {clean(str(value), 60)}" for name, value in whose if value)
    if node.kind == "call":
        cached = (view.usage or {}).get("cached_input_tokens")
        given = f"{node.in_text or '?'} in{f' ({count(cached)} cached)' if cached else ''}"
        price = f" ({clean(facts['cost_source'], 20)}, prices of {clean(facts['price_date'], 20)})" if facts.get("price_date") else ""
        yield f"{given} · {node.out_text or '?'} out · {node.cost_text or '?'}{price if node.cost_text not in ('', '?') else ''}"
    if any(value for _, value in ids):
        yield " · ".join(f"{name} {clean(str(value), 60)}" for name, value in ids if value)
    if view.estimated is not None:
        expected = view.estimated
        yield f"expected {_count(expected, 'input_tokens')} in, {_count(expected, 'output_tokens')} out, {money(expected.get('cost'))}"
    for held in view.held:
        yield f"held {_amount(held, 'held')} of {_limit(held)}"
    for retry in view.retries:
        status, wait = retry.get("status") or retry.get("error_type") or "?", retry.get("wait_s")
        yield f"retried after {clean(str(status), 40)}" + ("" if wait is None else f", {wait:g} s later")
    if node.refusal:
        yield f"refused: {clean(node.refusal, 400)}"
    yield from _chain(view)


def _chain(view: CallView) -> Iterator[str]:
    """Write the limits around a refused call as they stood, the outermost first; the one that said no is marked."""
    for each in objects_of((view.refusal or {}).get("chain")):
        mark = "x" if each.get("refused") else " "
        origin = f", written in {clean(str(each['origin']), 80)}" if each.get("origin") else ""
        yield f" {mark} {_limit(each)}: {_amount(each, 'used')} of {_amount(each, 'value')} used, {_amount(each, 'held')} held{origin}"


def _limit(told: Mapping[str, Any]) -> str:
    place = f"{clean(str(told.get('scope') or ''), 20)} {clean(str(told.get('name') or ''), 60)}".strip()
    return f"{clean(str(told.get('limit') or told.get('kind') or '?'), 40)} of {place or '?'}"


def _amount(told: Mapping[str, Any], name: str) -> str:
    value = told.get(name)
    return amount(str(told.get("kind")), value) if isinstance(value, (int, float)) else "?"


def _count(told: Mapping[str, Any], name: str) -> str:
    value = told.get(name)
    return count(value, estimated=True) if isinstance(value, int) else "?"


# -- what was said ------------------------------------------------------------------------------------------------


def _said(view: CallView) -> dict[str, Any]:
    names = ("arguments", "result") if view.node.kind == "tool" else ("system", "tools", "messages", "output")
    return {name: getattr(view, name) for name in names}


def _conversation(view: CallView) -> None:
    if view.node.kind == "tool":
        for name in ("arguments", "result"):
            _tell_said(name, json.dumps(getattr(view, name), ensure_ascii=False))
        return
    for part in view.system or ():
        _tell_said("system", _part(part))
    for message in (*(view.messages or ()), *(view.output or ())):
        for part in objects_of(message.get("parts")):
            _tell_said(clean(str(message.get("role") or "?"), 20), _part(part))


def _part(told: Mapping[str, Any]) -> str:
    """Write one part of a message: a text as it is, anything else as what it is."""
    if told.get("type") in ("text", "reasoning") and isinstance(told.get("content"), str):
        return str(told["content"])
    kind = str(told.get("type") or "?")
    rest = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in told.items() if name != "type"]
    return f"[{kind}] {' '.join(rest)}"


def _tell_said(role: str, text: str) -> None:
    """Print what somebody said, line by line, with nothing in it that moves a cursor."""
    lines = text[:_MOST_TEXT].splitlines() or [""]
    for at, line in enumerate(lines):
        print_line(f"{role + ':' if at == 0 else '':<11}{clean(line, _MOST_TEXT)}")
    if len(text) > _MOST_TEXT:
        print_line(f"{'':<11}… {len(text) - _MOST_TEXT:,} more characters; --json has them all.", "dim")
