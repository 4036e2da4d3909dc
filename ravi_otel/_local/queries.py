"""Ask the local store: the only SQL that reads it, for the command line and the page alike."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final, Literal, Self

from ravi_otel._local.answers import (
    CallView,
    Comparison,
    Curve,
    Difference,
    Found,
    Glance,
    Group,
    Json,
    Note,
    Refused,
    RunFilter,
    RunRow,
    RunsPage,
    RunTree,
    SpendFilter,
    SpendTable,
    Spent,
    Worked,
    consumed_in,
    duration_of,
    event_of,
    json_in,
    list_in,
    note_of,
    object_in,
    objects_in,
    parts_in,
    reading_of,
    run_row,
    sentence_in,
    sums_in,
    tags_in,
    waited_in,
)
from ravi_otel._local.store import REPORTED, SUMS, UNENDED, Store, StoredRow, Sums, alive_and_gone
from ravi_otel._local.stored_tree import ADDED, IN_RUNS, OF_TOOL, TOOLS, StoredRecord, leaf_of
from ravi_otel._local.tree import MOST, Leaf, event_fields, node_of, nodes_of
from ravi_otel._local.wording import clean, like, matching
from ravi_otel._sqlite import read_text
from ravi_otel.errors import ConfigurationError
from ravi_otel.hooks._events import LimitReading
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._limits import NANO

HOUR_NS: Final = 3_600 * NANO
LEAST_PREFIX: Final = 4
_MOST_FOUND: Final = 20
_MOST_FACETS: Final = 50
_FACETS: Final = ("status", "user", "tenant", "session", "stop_reason", "name")
_LAST: Final = "\U0010ffff"

Ordering = Literal["began", "cost", "tokens", "duration", "refused", "requests"]


# -- asking -------------------------------------------------------------------------------------------------------


class Queries:
    """Ask one store, over one connection of its own that writes nothing; from any thread, one question at a time."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._connection = store.connect()
        self._connection.execute("PRAGMA query_only=ON")
        self._connection.row_factory = sqlite3.Row
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _rows(self, statement: str, values: Sequence[Any] | Json = ()) -> list[StoredRow]:
        try:
            with self._lock:
                try:
                    self._connection.text_factory = str
                    return self._connection.execute(statement, values).fetchall()
                except sqlite3.OperationalError:  # also for a text that is none, which is read as far as it is one: that takes longer
                    self._connection.text_factory = read_text
                    return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise ConfigurationError(
                f"the local store at {checks.show(str(self.store.file))} cannot be read: {clean(str(error), 200)}. "
                "Set RAVI_STORE to another directory, or delete the file to begin anew."
            ) from error

    # -- runs -----------------------------------------------------------------------------------------------------

    def runs(
        self,
        where: RunFilter | None = None,
        *,
        most: int = 50,
        after: str | None = None,
        order: Ordering = "began",
        every: bool = False,
        facets: bool = False,
    ) -> RunsPage:
        """Give the runs that fit, those with the highest figure first: the latest unless `order` says otherwise.

        Of runs in one another the outermost that fits stands for the rest; with `every`, and with `where.inside`, each is given.
        """
        where = where or RunFilter()
        if order not in _ORDERS:
            raise ConfigurationError(f"order={checks.show(order)} is none of {', '.join(_ORDERS)}.")
        conditions, values = self._conditions(where)
        values["gone"] = json.dumps(self._gone())
        light = f"SELECT run, parent, {_ORDERS[order]} AS rank, tags, {', '.join(_FACETS)} FROM ({_RUNS})"
        found = self._rows(f"{_GONE} {light} WHERE {' AND '.join(conditions) or '1'}", values)
        matched = {row["run"]: row for row in found}
        stands = not every and where.inside is None
        counted = _facets(found, matched if stands else {}) if facets else {}
        if stands:
            found = [row for row in found if row["parent"] is None or row["parent"] not in matched]
        found.sort(key=_rank, reverse=True)
        last = None if after is None else _cursor(after)
        rest = found if last is None else [row for row in found if _rank(row) < last]
        page = rest[:most]
        more = "{}~{}".format(*_rank(page[-1])) if page and len(rest) > most else None
        added = f"SELECT {ADDED} FROM runs WHERE run IN {_ONLY}"  # none of them is in another, unless each is given
        sums = self._rows(added, {"only": json.dumps([row["run"] for row in found])}) if facets else []
        whole = Spent.of(sums_in(sums[0])) if sums else None
        return RunsPage(self._heads([row["run"] for row in page], values["gone"]), len(found), more, whole, counted)

    def _heads(self, runs: Sequence[str], gone: str) -> tuple[RunRow, ...]:
        """Give runs by their ids, in this order."""
        ends = self._ends(runs)
        only = {"only": json.dumps(list(runs)), "gone": gone}
        rows = self._rows(f"{_GONE} {_SOME_RUNS}", only)
        around = [row["run"] for row in rows if row["kind"] != "run"]
        whose = {row["top"]: row for row in self._rows(_WHOSE_RUNS, {"runs": json.dumps(around)})} if around else {}
        found = {row["run"]: run_row(row, ends.get(row["run"]), whose.get(row["run"])) for row in rows}
        return tuple(found[run] for run in runs if run in found)

    def glances(self, rows: Sequence[RunRow]) -> tuple[Glance, ...]:
        """Give for each run how its cost grew, and the fullest limit of it and of what is in it, in this order."""
        small = [row for row in rows if row.spent.requests <= _MOST_DRAWN]
        times = [(row.run, row.began, row.duration or max(1, time.time_ns() - row.began)) for row in small]
        parts: dict[str, list[int]] = defaultdict(lambda: [0] * DRAWN)
        for row in self._rows(_GROWTH, {"runs": json.dumps([row.run for row in small]), "times": json.dumps(times)}):
            parts[row["top"]][min(DRAWN - 1, max(0, row["part"]))] += row["cost"]
        fullest = {row["top"]: row["limit_json"] for row in self._rows(_FULLEST, {"runs": json.dumps([row.run for row in rows])})}
        return tuple(Glance.of(parts.get(row.run, ()), fullest.get(row.run)) for row in rows)

    def run(self, run: str) -> RunRow:
        """Give one run by its whole id; ConfigurationError where there is none."""
        found = self._heads([run], json.dumps(self._gone()))
        if not found:
            raise ConfigurationError(f"RUN={checks.show(run)} names no run of the store. `ravi-otel runs` lists them.")
        return found[0]

    def names(self, runs: Iterable[str]) -> dict[str, str]:
        """Give the names of these runs by their ids, of those that are kept and have one."""
        rows = self._rows(f"SELECT run, name FROM runs WHERE name IS NOT NULL AND run IN {_ONLY}", {"only": json.dumps(sorted(set(runs)))})
        return {row["run"]: clean(row["name"]) for row in rows}

    def _conditions(self, where: RunFilter) -> tuple[list[str], dict[str, Any]]:
        values: dict[str, Any] = {each.name: getattr(where, each.name) for each in fields(where)}
        del values["tag"]
        conditions = [condition for name, condition in _CONDITIONS.items() if values[name] is not None]
        if where.status == "refused":
            conditions = ["refused > 0" if condition == _CONDITIONS["status"] else condition for condition in conditions]
        elif where.status not in (None, *_STATUSES):
            raise ConfigurationError(f"status={checks.show(where.status)} is no status of a run. Write {', '.join(_STATUSES)} or refused.")
        if where.tag is not None:
            key, value = where.tag
            conditions.append(_HAS_TAG if value is None else f"{_HAS_TAG[:-1]} AND value = :tag_value)")
            values |= {"tag_key": key, "tag_value": value}
        if where.inside is not None:
            values["inside"] = json.dumps(self._inside(where.inside)[1:])
        if where.text is not None:
            values |= {"words": matching(where.text), "text": like(where.text), "whole": where.text}
        return conditions, values

    def _gone(self) -> list[str]:
        """List the processes and launches that nobody saw end, and that run no more."""
        return sorted(alive_and_gone(self._rows(UNENDED))[1])

    def _inside(self, run: str) -> list[str]:
        """List a run and all runs in it, itself first."""
        return [row["run"] for row in self._rows(f"{_INNER} SELECT run FROM inner_runs", {"runs": json.dumps([run])})]

    def _ends(self, runs: Sequence[str]) -> dict[str, tuple[str, str | None]]:
        """Find how the outermost run or agent in each run ended that did not come to its end, the first of several."""
        found: dict[str, tuple[str, str | None]] = {}
        for row in self._rows(_ENDS, {"runs": json.dumps(list(runs))}):
            found.setdefault(row["top"], (str(row["status"]), row["stop_reason"]))
        return found

    # -- one run --------------------------------------------------------------------------------------------------

    def record(self, run: str, *, most: int = MOST, scope: str | None = None) -> StoredRecord:
        """Give a run's tree, up to so many nodes, with its head and what was launched; with `scope` only what is in that one."""
        return StoredRecord(self._rows, self.run(run), self._inside(run), most, scope)

    def tree(self, run: str, *, most: int = 100_000) -> RunTree:
        """Give one run whole, up to so many nodes."""
        record, place = self.record(run, most=most), {"runs": json.dumps(self._inside(run))}
        limits = record.limits()
        notes = [note_of(row) for row in self._rows(f"SELECT * FROM notes WHERE {IN_RUNS}", place)]
        notes += [
            Note(row["at"], "review", row["scope"], clean(row["tool"]), {name: row[name] for name in _REVIEW})
            for row in self._rows(f"SELECT * FROM reviews WHERE {IN_RUNS}", place)
        ]
        return RunTree(
            run=record.head,
            nodes=tuple(nodes_of(record)),
            limits=tuple(reading for _, reading in limits),
            limit_sums=tuple(branch.sums for branch, _ in limits),
            notes=tuple(sorted(notes, key=lambda note: note.at)),
            left_out=sum(record.left_out.values()),
            launch=record.launch,
        )

    def curves(self, run: str) -> tuple[Curve, ...]:
        """Give where each limit of a run, and of what is in it, stood over its time."""
        rows = self._rows(f"SELECT * FROM samples WHERE {IN_RUNS} ORDER BY at", {"runs": json.dumps(self._inside(run))})
        found: dict[tuple[Any, ...], list[StoredRow]] = defaultdict(list)
        for row in rows:
            found[tuple(row[name] for name in _CURVE)].append(row)
        return tuple(Curve.of(dict(zip(_CURVE, key, strict=True)), each) for key, each in found.items())

    # -- one call -------------------------------------------------------------------------------------------------

    def last_call(self, run: str, *, before: int, agent: str | None) -> str | None:
        """Give the id of the last model call that had begun in a run by a time, one of this agent where it made any; None without any."""
        order = "ORDER BY agent IS NOT :agent, began DESC LIMIT 1"
        known = {"run": run, "before": before, "agent": agent}
        found = list(self._rows(f"SELECT call FROM calls WHERE run = :run AND began <= :before {order}", known))
        return None if not found else str(found[0]["call"])

    def call(self, call: str) -> CallView:
        """Give one model call or tool call by its whole id; ConfigurationError where there is none."""
        for rows in ("SELECT * FROM calls", TOOLS):
            for row in self._rows(f"{rows} WHERE call = ?", (call,)):
                return self._call_view(row, leaf_of(row))
        raise ConfigurationError(f"CALL={checks.show(call)} names no call of the store. `ravi-otel show RUN` shows those of a run.")

    def _call_view(self, row: StoredRow, leaf: Leaf) -> CallView:
        events = [
            event_of(each) for each in self._rows("SELECT * FROM events WHERE run = ? AND call = ? ORDER BY at", (row["run"], row["call"]))
        ]
        leaf.events = tuple(event for event in events if event is not None)
        known = dict(row)
        facts = {name: known[name] for name in (*_CALL_FACTS, *_TOOL_FACTS) if name in known}
        return CallView(
            node=node_of(leaf, row["scope"]),
            **{name: row[name] for name in ("run", "scope", "agent", "user", "tenant", "session", "trace", "span")},
            tags=tags_in(row["tags"]),
            sampled=bool(row["sampled"]),
            facts=facts | {"finish_reasons": list_in(known.get("finish_reasons"))},
            usage=object_in(known.get("usage")),
            estimated=object_in(known.get("estimated")),
            held=objects_in(known.get("held")),
            charged=object_in(known.get("charged")),
            refusal=object_in(row["refusal"]),
            retries=objects_in(known.get("retries")),
            events=tuple(event_fields(event) for event in leaf.events),
            waited=waited_in(
                self._rows("SELECT at, decision FROM reviews WHERE run = ? AND call = ? ORDER BY at", (row["run"], row["call"]))
            ),
            **self._content(row["call"]),
        )

    def _content(self, call: str) -> dict[str, Any]:
        rows = self._rows("SELECT kind, messages, data FROM content WHERE item = ?", (call,))
        if not rows:
            return {"captured": False}
        data = object_in(rows[0]["data"]) or {}
        if rows[0]["kind"] == "tool":
            return {"captured": True, "arguments": json_in(data.get("arguments")), "result": json_in(data.get("result"))}
        system, tools = (self._messages(json.dumps([data[name]])) if name in data else () for name in ("system", "tools"))
        return {
            "captured": True,
            "messages": self._messages(rows[0]["messages"]),
            "output": self._messages(json.dumps(data.get("output") or [])),
            "system": parts_in(system),
            "tools": parts_in(tools),
        }

    def _messages(self, listed: str | None) -> tuple[Json, ...]:
        """Give the messages of these ids, in order."""
        ids = [each for each in list_in(listed) if isinstance(each, int)]
        found: dict[int, Json] = {}
        for row in self._rows("SELECT id, data FROM messages WHERE id IN (SELECT value FROM json_each(?))", (json.dumps(ids),)):
            found[row["id"]] = object_in(row["data"]) or {}
        return tuple(found[each] for each in ids if each in found)

    # -- spend ----------------------------------------------------------------------------------------------------

    def spend(
        self,
        by: Sequence[str] = ("model",),
        *,
        since: int | None = None,
        until: int | None = None,
        where: SpendFilter | None = None,
    ) -> SpendTable:
        """Add up what was spent from `since` on and before `until`, by any of `GROUPINGS`, and by `tag.KEY`.

        What a program reported by hand is of the hour in which its run or agent ended.
        """
        for each in by:
            if each not in GROUPINGS and not (each.startswith(_TAG) and each != _TAG):
                raise ConfigurationError(f"by={checks.show(each)} is nothing to add up by. Write one of {', '.join(GROUPINGS)} or tag.KEY.")
        where = where or SpendFilter()
        of_runs = any(each in _OF_RUNS or each.startswith(_TAG) for each in by)
        found = (self._of_runs if of_runs else self._rolled_up)(by, since, until, where)
        columns = zip(*(_FIGURES(sums) for _, _, sums in found.values()), strict=True)
        total = Sums(*map(sum, columns))
        told = ((key, calls, duration, sums) for key, (calls, duration, sums) in found.items() if calls or any(_FIGURES(sums)))
        groups = [Group(key, calls, duration, Spent.of(sums)) for key, calls, duration, sums in told]
        times = [at for at, each in enumerate(by) if each in _TIMES]
        groups.sort(key=lambda group: (*(group.key[at] or "" for at in times), *group.dearest_first))
        return SpendTable(tuple(by), since, until, tuple(groups), Spent.of(total))

    def tags(self) -> tuple[str, ...]:
        """Give the keys of tags that runs have, the most frequent first."""
        rows = self._rows(
            f"SELECT key, count(*) AS number FROM runs, json_each({_SOUND_TAGS}) GROUP BY key ORDER BY 2 DESC, 1 LIMIT {_MOST_FACETS}"
        )
        return tuple(str(row["key"]) for row in rows)

    def _rolled_up(self, by: Sequence[str], since: int | None, until: int | None, where: SpendFilter) -> _Groups:
        """Add up what is kept by the hour, and call by call a part of an hour at either end, and an hour in which a local day begins."""
        first = -(-since // HOUR_NS) * HOUR_NS if since is not None else 0
        last = until // HOUR_NS * HOUR_NS if until is not None else _FOREVER
        sources = [f"SELECT {', '.join(_ROLLED)} FROM hourly WHERE hour >= {first} AND hour < {last}"]
        for start, end in [(since, until)] if first > last else [(since, first), (last, until)]:
            if start is not None and end is not None and start < end:
                sources += _as_hours(f"began >= {start} AND began < {end}")
        hours = f"SELECT DISTINCT hour FROM hourly WHERE hour >= {first} AND hour < {last} LIMIT -1"  # so that each is judged once
        cut = [row["hour"] for row in self._rows(f"SELECT hour FROM ({hours}) WHERE {_SPLIT}")] if _DAYS & set(by) else []
        if cut:
            sources[0] += " AND hour NOT IN (SELECT value FROM json_each(:cut))"
            sources += _as_hours(_IN_HOURS)
        return self._added(by, sources, where, {"cut": json.dumps(cut)})

    def _of_runs(self, by: Sequence[str], since: int | None, until: int | None, where: SpendFilter) -> _Groups:
        """Add up what belongs to runs: by their own sums where all of a run fits, else by its calls."""
        within = [f"began >= {since}"] * (since is not None) + [f"began < {until}"] * (until is not None)
        sources: list[str] = []
        apart = any(each not in _WHOSE and not each.startswith(_TAG) for each in by)
        if not apart and not any((where.model, where.agent, where.tool, where.provider)):
            inside = [f"coalesce(began, 0) >= {since}"] * (since is not None) + [f"ended < {until}"] * (until is not None)
            outside = [f"coalesce(began, 0) >= {until}"] * (until is not None) + [f"ended < {since}"] * (since is not None)
            whole = f"coalesce({' AND '.join(inside) or '1'}, 0)"
            sources = [f"{_RUNS_AS_HOURS} WHERE {whole}"]
            within.append(f"run IN (SELECT run FROM runs WHERE NOT {whole} AND NOT coalesce({' OR '.join(outside) or '0'}, 0))")
        sources += _as_hours(" AND ".join(within) or "1", _OF_ONE_RUN)
        return self._added(by, sources, where, {})

    def _added(self, by: Sequence[str], sources: Sequence[str], where: SpendFilter, values: dict[str, Any]) -> _Groups:
        """Add up the rows of these sources by each key."""
        conditions, chosen = _spend_conditions(where)
        values |= chosen
        if "tool" in by:
            conditions.append("tool != ''")
        source = f"({' UNION ALL '.join(sources)}) WHERE {' AND '.join(conditions) or '1'}"
        keys: list[str] = []
        for at, each in enumerate(by):
            values[f"tag{at}"] = each.removeprefix(_TAG)
            of_run = f"(SELECT value FROM json_each({_SOUND_TAGS}) WHERE key = :tag{at})" if each.startswith(_TAG) else each
            key = each if each in _ROLLED else f"coalesce({of_run}, '')"
            keys.append("hour" if each in _TIMES else f"{key} AS key{at}")
        statement = _grouped(list(dict.fromkeys(keys)), source)
        if "hour" in keys:  # added up by UTC first, since local time is dear
            named = [f"{_TIMES[each]} AS key{at}" if each in _TIMES else f"key{at}" for at, each in enumerate(by)]
            statement = _grouped(named, f"({statement})")
        rows = self._rows(statement, values)
        found = ((tuple(key or None for key in row[: len(by)]), row) for row in rows if row["calls"] is not None)
        return {key: (row["calls"], row["duration"] or 0, sums_in(row)) for key, row in found}

    # -- refusals, ids and words ----------------------------------------------------------------------------------

    def refusals(
        self,
        *,
        since: int | None = None,
        until: int | None = None,
        where: SpendFilter | None = None,
        most: int = 100,
    ) -> tuple[Json, ...]:
        """Give the refused calls and tool calls, the latest first, each with the sentence that the program got."""
        conditions, values = _spend_conditions(where or SpendFilter())
        conditions += ["status = 'refused'"] + ["began >= :since"] * (since is not None) + ["began < :until"] * (until is not None)
        values |= {"since": since, "until": until, "most": most}
        kept = " AND ".join(conditions)
        columns = "began, run, scope, agent, user, tenant, limit_kind, limit_scope, limit_reason, refusal"
        calls = f"SELECT call, 'call' AS kind, model AS name, {columns} FROM (SELECT *, '' AS tool FROM calls) WHERE {kept}"
        tools = f"SELECT call, 'tool', name, {columns} FROM (SELECT *, name AS tool, '' AS model, '' AS provider FROM tools) WHERE {kept}"
        found = self._rows(f"{calls} UNION ALL {tools} ORDER BY began DESC LIMIT :most", values)
        return tuple({**dict(row), "refusal": sentence_in(row["refusal"])} for row in found)

    def find(self, written: str) -> tuple[Found, ...]:
        """Find what an id names, whole or by its beginning: a run, launch, process, scope, call, tool call, trace or span."""
        text = written.strip()
        long = len(text) >= LEAST_PREFIX
        tries = [(_NAMED[0], _IS), (_NAMED[1], _IS), (_NAMED[0], _BEGINS), (_NAMED[1], _BEGINS), (_NAMED[2], _BEGINS)]
        for places, fits in tries if long else [(each, _IS) for each in _NAMED]:
            found: dict[tuple[str, str], Found] = {}
            for kind, table, columns, run, title in places:
                condition = " OR ".join(fits.format(column) for column in columns)
                if table == "launches" and fits is _BEGINS:
                    condition += " OR substr(launch, -length(:id)) = :id"  # the end of one tells it apart as well
                chosen = f"SELECT {columns[0]} AS id, {run} AS run, {title} AS title FROM {table}"
                for row in self._rows(f"{chosen} WHERE {condition} LIMIT {_MOST_FOUND}", {"id": text, "end": text + _LAST}):
                    is_run = kind == "run" or (kind == "scope" and str(row["title"]).startswith("run "))  # the scope of a run
                    what, number = ("run", row["run"]) if is_run else (kind, row["id"])
                    if not (is_run and ("launch", number) in found):
                        found.setdefault((what, number), Found(what, number, row["run"], clean(row["title"])))
            if found:
                return tuple(found.values())
        return ()

    def named(self, text: str, *, most: int = 8) -> tuple[Found, ...]:
        """Find what has these words in its name: runs, the latest first, and agents, models, users and tenants that spent something."""
        like_text = like(text)
        if like_text is None:
            return ()
        rows = self._rows(_RUNS_NAMED, {"text": like_text, "most": most})
        for kind in _NAMED_IN_HOURS:
            rows += self._rows(_IN_HOURS_NAMED.format(kind=kind), {"text": like_text, "most": most})
        return tuple(Found(row["kind"], row["id"], row["run"], clean(row["title"])) for row in rows)

    def refused_with(self, text: str, *, most: int = 8) -> tuple[Found, ...]:
        """Find the refused calls, the latest first, whose sentence has this text in it, or is in it, as in a line of a log."""
        like_text = like(text)
        if like_text is None or len(text) < LEAST_PREFIX:
            return ()
        rows = self._rows(f"{_REFUSED_WITH} ORDER BY began DESC LIMIT :most", {"text": like_text, "whole": text, "most": most})
        return tuple(Found("refused", row["call"], row["run"], clean(row["sentence"], 400)) for row in rows)

    def search(self, text: str, *, most: int = 10) -> tuple[Found, ...]:
        """Find calls by words of what was said in them; words are all looked for, and "several in quotes" as they stand."""
        rows = self._rows(_SEARCH, {"words": matching(text), "most": most})
        return tuple(Found("said in", row["item"] or row["run"], row["run"], clean(row["snippet"], 400)) for row in rows)

    def matches(self, text: str) -> tuple[Found, ...]:
        """Find what an id, a name, the sentence of a refusal or a line that quotes it, or words that were said lead to."""
        return tuple(dict.fromkeys((*self.find(text), *self.named(text), *self.refused_with(text.strip()), *self.search(text))))

    # -- two runs, and limits -------------------------------------------------------------------------------------

    def compare(self, a: str, b: str) -> Comparison:
        """Compare two runs: totals, then tokens and cost by agent and model."""
        heads = self.run(a), self.run(b)
        rows = [
            Difference("duration", heads[0].duration, heads[1].duration, heads[0].duration_text, heads[1].duration_text),
            *(Difference.between(name, *(head.spent for head in heads)) for name in _COMPARED),
        ]
        parts = [self._parts_of(run) for run in (a, b)]
        for key in sorted({*parts[0], *parts[1]}, key=lambda key: -max(spent.cost_nano or 0 for part in parts if (spent := part.get(key)))):
            title = " · ".join(clean(each, 60) for each in key if each) or "(no agent)"
            rows += [
                Difference.between(name, *(part.get(key) for part in parts), prefix=f"{title}: ") for name in ("requests", "cost_nano")
            ]
        return Comparison(*heads, tuple(rows))

    def _parts_of(self, run: str) -> dict[tuple[str | None, ...], Spent]:
        statement = f"SELECT agent, model, {ADDED} FROM calls WHERE {IN_RUNS} GROUP BY 1, 2"
        rows = self._rows(statement, {"runs": json.dumps(self._inside(run))})
        return {(row["agent"], row["model"]): Spent.of(sums_in(row)) for row in rows}

    def worked(
        self, *, since: int | None = None, until: int | None = None, most: int = 2_000
    ) -> tuple[tuple[Worked, ...], tuple[Worked, ...]]:
        """Give the outermost runs begun since, the latest first and at most so many, and each time that an agent worked in one of them."""
        end = _FOREVER if until is None else until
        values = {"gone": json.dumps(self._gone()), "since": since or 0, "until": end, "most": most}
        latest = "WHERE parent IS NULL AND began >= :since AND began < :until ORDER BY began DESC, run DESC LIMIT :most"
        runs = self._rows(f"{_GONE} SELECT * FROM ({_RUNS}) {latest}", values)
        agents = self._rows(_AGENTS, values)
        sums = {row["scope"]: sums_in(row) for row in self._rows(_AGENT_SUMS, values)}
        for row in agents:
            sums.setdefault(row["scope"], Sums()).add(consumed_in(row["spend"]))
        return (
            tuple(
                Worked(row["run"], row["name"], row["kind"], row["began"], duration_of(row), row["status"], row["outcome"], sums_in(row))
                for row in runs
            ),
            tuple(
                Worked(row["top"], row["name"], "agent", row["began"], duration_of(row), row["status"], None, sums[row["scope"]])
                for row in agents
            ),
        )

    def refused_by(self, kind: str, value: int, *, since: int | None = None, agent: str | None = None, most: int = 2_000) -> Refused:
        """Tell which calls of the outermost runs that `worked` gives did not fit under a limit, of each run or of each work of an agent.

        `value` is in the kind's inner unit. A call fits while what was used with it is no more than that.
        """
        if kind not in _METRICS:
            raise ConfigurationError(f"kind={checks.show(kind)} cannot be tried on past runs. Write one of {', '.join(_METRICS)}.")
        values = {"gone": "[]", "since": since or 0, "until": _FOREVER, "most": most, "agent": agent, "value": value}
        (row,) = self._rows(_WOULD_REFUSE.format(metric=_METRICS[kind], work="top" if agent is None else "calls.scope"), values)
        return Refused(row["works"], row["calls"], row["cost"] or 0, row["unknown"] or 0)

    def limits_of(self, limit: str, *, agent: str | None = None) -> LimitReading | None:
        """Give how such a limit of a run, or of an agent, stood when it was last kept; None where none was."""
        for row in self._rows(_LAST_LIMITS, {"kind": "run" if agent is None else "agent", "agent": agent}):
            for reading in map(reading_of, objects_in(row["limits"])):
                if reading is not None and reading.limit.label == limit and reading.scope.value == row["kind"]:
                    return reading
        return None


# -- what is asked ------------------------------------------------------------------------------------------------

_Groups = dict[tuple[str | None, ...], tuple[int, int, Sums]]

GROUPINGS: Final = ("hour", "day", "week", "month", "model", "provider", "agent", "tool", "user", "tenant", "session", "run")
"""What spend is added up by, besides `tag.KEY`."""

_TAG: Final = "tag."
_LOCAL: Final = f"hour / {NANO}, 'unixepoch', 'localtime'"
_THURSDAY: Final = f"{_LOCAL}, '-3 days', 'weekday 4'"
"""That of its week, by which ISO 8601 counts."""

_TIMES: Final[Mapping[str, str]] = {
    "hour": f"strftime('%Y-%m-%d %H:%M', (hour - hour % {HOUR_NS}) / {NANO}, 'unixepoch', 'localtime')",
    "day": f"date({_LOCAL})",
    "week": f"strftime('%Y-W', {_THURSDAY}) || printf('%02d', (strftime('%j', {_THURSDAY}) + 6) / 7)",
    "month": f"strftime('%Y-%m', {_LOCAL})",
}
_DAYS: Final = frozenset({"day", "week", "month"})
_SPLIT: Final = f"{_TIMES['day']} != date((hour + {HOUR_NS} - 1) / {NANO}, 'unixepoch', 'localtime')"
"""Whether a local day begins within an hour of UTC: where local time is not whole hours ahead."""

_OF_RUNS: Final = frozenset({"session", "run"})
_WHOSE: Final = frozenset({"session", "run", "user", "tenant"})
_FOREVER: Final = 2**63 - 1
_STATUSES: Final = ("running", "ok", "error", "stopped", "paused", "cancelled", "ended", "lost")
_SUMMED: Final = ", ".join(SUMS)
_SOUND_TAGS: Final = "CASE WHEN json_valid(tags) THEN tags ELSE '{}' END"
_HAS_TAG: Final = f"EXISTS (SELECT 1 FROM json_each({_SOUND_TAGS}) WHERE key = :tag_key)"
_GONE: Final = "WITH RECURSIVE gone(id) AS (SELECT value FROM json_each(:gone))"

_ENDED: Final = "iif({0}status = 'error' AND {0}stop_reason GLOB 'limit_*', 'stopped', {0}status)"
"""How a run or agent ended: one that let a refusal through was stopped, as one that handled it."""

_STATUS: Final = f"""CASE
    WHEN r.kind = 'launch' AND l.launch IS NOT NULL THEN CASE l.outcome
        WHEN 'running' THEN iif(l.launch IN (SELECT id FROM gone), 'lost', 'running')
        WHEN 'ok' THEN 'ok' WHEN 'stopped' THEN 'stopped' WHEN 'signal' THEN 'cancelled' ELSE 'error' END
    WHEN r.kind != 'process' AND r.status != 'open' THEN {_ENDED.format("r.")}
    WHEN p.ended IS NULL THEN iif(r.process IN (SELECT id FROM gone), 'lost', 'running')
    WHEN r.kind != 'process' THEN 'ended'
    ELSE CASE p.outcome WHEN 'failed' THEN 'error' WHEN 'signal' THEN 'cancelled' ELSE 'ok' END END"""

_RUNS: Final = f"""
    SELECT r.run, r.kind, r.parent, r.launch, r.process, coalesce(l.name, r.name) AS name, r.user, r.tenant, r.session,
        coalesce(l.tags, r.tags) AS tags, r.trace, r.span, r.sampled, coalesce(l.began, r.began) AS began,
        CASE r.kind WHEN 'launch' THEN l.ended WHEN 'process' THEN p.ended ELSE r.ended END AS ended, {_STATUS} AS status,
        iif(l.launch IN (SELECT id FROM gone), 'lost', l.outcome) AS outcome, l.status AS exit_status, r.stop_reason, r.error_type,
        r.refusal, r.agents, coalesce(p.lost, 0) AS lost_records, {", ".join(f"r.{name}" for name in SUMS)}
    FROM runs r LEFT JOIN launches l ON r.kind = 'launch' AND l.launch = r.run LEFT JOIN processes p ON p.process = r.process
    UNION ALL
    SELECT l.launch, 'launch', NULL, l.launch, NULL, l.name, NULL, NULL, NULL, l.tags, NULL, NULL, 0, l.began, l.ended,
        CASE l.outcome WHEN 'running' THEN iif(l.launch IN (SELECT id FROM gone), 'lost', 'running')
            WHEN 'ok' THEN 'ok' WHEN 'stopped' THEN 'stopped' WHEN 'signal' THEN 'cancelled' ELSE 'error' END,
        iif(l.launch IN (SELECT id FROM gone), 'lost', l.outcome), l.status, NULL, NULL, NULL, 0, 0, {", ".join("0" for _ in SUMS)}
    FROM launches l WHERE l.launch NOT IN (SELECT run FROM runs)"""
"""Every run with how it ended; a launch of which nothing was told has none but its own row."""

_FIGURES: Final = attrgetter(*SUMS)
_ONLY: Final = "(SELECT value FROM json_each(:only))"
_SOME_RUNS: Final = _RUNS.replace("\n    UNION ALL", f" WHERE r.run IN {_ONLY}\n    UNION ALL") + f" AND l.launch IN {_ONLY}"

_SENTENCE: Final = "json_extract(CASE WHEN json_valid(refusal) THEN refusal ELSE '{}' END, '$.sentence')"
_LEAST_SENTENCE: Final = 20
_REFUSED_WITH: Final = f"""
    SELECT run, call, began, sentence FROM (
        SELECT run, call, began, {_SENTENCE} AS sentence FROM calls WHERE status = 'refused'
        UNION ALL SELECT run, call, began, {_SENTENCE} FROM tools
            WHERE status = 'refused' AND run IN (SELECT run FROM runs WHERE refused > 0))
    WHERE sentence LIKE :text ESCAPE '\\' OR (length(sentence) > {_LEAST_SENTENCE} AND instr(:whole, sentence))"""
"""The refused calls whose sentence has a text in it, or is in that text."""

_CONDITIONS: Final[Mapping[str, str]] = {
    "since": "began >= :since",
    "until": "began < :until",
    "status": "status = :status",
    "user": "user = :user",
    "tenant": "tenant = :tenant",
    "session": "session = :session",
    "stop_reason": "(stop_reason = :stop_reason OR substr(stop_reason, 1, length(:stop_reason) + 1) = :stop_reason || ':')",
    "name": "name = :name",
    "agent": "run IN (SELECT run FROM scopes WHERE kind = 'agent' AND name = :agent)",
    "model": "run IN (SELECT run FROM calls WHERE model = :model)",
    "text": "(name LIKE :text ESCAPE '\\' OR run IN (SELECT run FROM messages WHERE id IN "
    f"(SELECT rowid FROM messages_text WHERE messages_text MATCH :words)) OR run IN (SELECT run FROM ({_REFUSED_WITH})))",
    "inside": "run IN (SELECT value FROM json_each(:inside))",
}
_ORDERS: Final[Mapping[str, str]] = {
    "began": "coalesce(began, 0)",
    "cost": "cost_nano",
    "tokens": "input_tokens + output_tokens + unsplit_tokens",
    "duration": "coalesce(ended - began, 0)",
    "refused": "refused",
    "requests": "requests",
}
_INNER: Final = """
    WITH RECURSIVE inner_runs(top, run, level) AS (
        SELECT value, value, 0 FROM json_each(:runs)
        UNION ALL SELECT top, runs.run, level + 1 FROM inner_runs JOIN runs ON runs.parent = inner_runs.run WHERE level < 50)"""
"""Each of these runs with the runs in it, itself first."""

_ENDS: Final = f"""{_INNER}
    SELECT top, {_ENDED.format("scopes.")} AS status, stop_reason FROM inner_runs JOIN scopes ON scopes.run = inner_runs.run
    WHERE kind IN ('run', 'agent') AND NOT (kind = 'run' AND scopes.run = top) AND status NOT IN ('ok', 'open')
    ORDER BY 1000 * level + iif(kind = 'run', 0, 1 + coalesce(depth, 0)), began"""
_WHOSE_RUNS: Final = """
    WITH RECURSIVE inner_runs(top, run, kind, user, tenant, level) AS (
        SELECT value, value, NULL, NULL, NULL, 0 FROM json_each(:runs)
        UNION ALL SELECT top, runs.run, runs.kind, runs.user, runs.tenant, level + 1
        FROM inner_runs JOIN runs ON runs.parent = inner_runs.run WHERE level < 50 AND inner_runs.kind IS NOT 'run')
    SELECT top, count(DISTINCT user) AS users, max(user) AS user, max(user IS NULL) AS no_user,
        count(DISTINCT tenant) AS tenants, max(tenant) AS tenant, max(tenant IS NULL) AS no_tenant
    FROM inner_runs WHERE kind = 'run' GROUP BY top"""
"""Of whom the outermost runs are in what is no run itself."""

DRAWN: Final = 16
"""Equal parts of a run's time in which a row shows how its cost grew."""

_MOST_DRAWN: Final = 5_000
_GROWTH: Final = f"""{_INNER},
    times(top, began, took) AS (
        SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]') FROM json_each(:times))
    SELECT top, (calls.began + coalesce(calls.duration, 0) - times.began) * {DRAWN} / (took + 1) AS part, sum(cost_nano) AS cost
    FROM inner_runs JOIN times USING (top) CROSS JOIN calls ON calls.run = inner_runs.run WHERE cost_nano > 0 GROUP BY 1, 2"""
_FULLEST: Final = f"""{_INNER}
    SELECT top, told.value AS limit_json, max(coalesce(json_extract(told.value, '$.ratio'), -1)
        - iif(json_extract(told.value, '$.limit') IN ('agents', 'fan_out', 'depth'), 2, 0)) AS fullness
    FROM (SELECT top, limits FROM inner_runs CROSS JOIN scopes ON scopes.run = inner_runs.run WHERE limits IS NOT NULL
        UNION ALL SELECT top, budgets FROM inner_runs CROSS JOIN launches ON launch = inner_runs.run WHERE budgets IS NOT NULL) AS kept
    CROSS JOIN json_each(CASE WHEN json_valid(kept.limits) THEN kept.limits ELSE '[]' END) AS told
    WHERE told.type = 'object' AND json_extract(told.value, '$.scope') IN ('run', 'agent', 'block', 'handoff')
    GROUP BY top"""
_TOPS: Final = """
    WITH RECURSIVE gone(id) AS (SELECT value FROM json_each(:gone)), tops(top, run) AS (
        SELECT * FROM (SELECT run, run FROM runs WHERE parent IS NULL AND began >= :since AND began < :until
            ORDER BY began DESC LIMIT :most)
        UNION ALL SELECT top, runs.run FROM tops JOIN runs ON runs.parent = tops.run)"""
_AGENTS: Final = (
    f"{_TOPS} SELECT top, scope, name, began, ended, {_ENDED.format('scopes.')} AS status, spend "
    "FROM tops JOIN scopes ON scopes.run = tops.run "
    "WHERE kind = 'agent' AND status != 'open' ORDER BY began DESC"
)
_AGENT_SUMS: Final = f"{_TOPS} SELECT scope, {ADDED} FROM tops JOIN calls ON calls.run = tops.run GROUP BY scope"
_METRICS: Final = {
    "cost": "cost_nano",
    "tokens": "input_tokens + output_tokens + unsplit_tokens",
    "requests": "requests",
    "turns": "turns",
}
_WOULD_REFUSE: Final = (
    _TOPS
    + """, reached AS (
        SELECT {work} AS work, {metric} AS used, cost_nano, uncosted_calls,
            sum({metric}) OVER (PARTITION BY {work} ORDER BY calls.began, call) AS so_far
        FROM tops JOIN calls ON calls.run = tops.run WHERE :agent IS NULL OR agent = :agent)
    SELECT count(DISTINCT work) AS works, count(*) AS calls, sum(cost_nano) AS cost, sum(uncosted_calls) AS unknown
    FROM reached WHERE used > 0 AND so_far > :value"""
)
_LAST_LIMITS: Final = """
    SELECT scope, kind, limits FROM scopes WHERE kind = :kind AND limits IS NOT NULL AND (:agent IS NULL OR name = :agent)
    ORDER BY rowid DESC LIMIT 20"""
_RUNS_NAMED: Final = (
    "SELECT 'run' AS kind, run AS id, run, name AS title FROM runs WHERE name LIKE :text ESCAPE '\\' ORDER BY began DESC LIMIT :most"
)
_NAMED_IN_HOURS: Final = ("agent", "model", "user", "tenant")
_IN_HOURS_NAMED: Final = (
    "SELECT DISTINCT '{kind}' AS kind, {kind} AS id, NULL AS run, {kind} AS title FROM hourly "
    "WHERE {kind} != '' AND {kind} LIKE :text ESCAPE '\\' LIMIT :most"
)
_SEARCH: Final = """
    SELECT snippet(messages_text, 0, '«', '»', '…', 16) AS snippet, messages.run AS run, (
        SELECT item FROM content WHERE content.run = messages.run AND content.kind != 'review'
            AND (messages.id IN (SELECT value FROM json_each(content.messages)) OR instr(content.data, messages.id)) LIMIT 1) AS item
    FROM messages_text JOIN messages ON messages.id = messages_text.rowid
    WHERE messages_text MATCH :words ORDER BY messages_text.rank LIMIT :most"""

_ROLLED: Final = ("hour", "provider", "model", "agent", "tool", "user", "tenant", "calls", "duration", *SUMS)
_WHOSE_CALL: Final = "coalesce(agent, '') AS agent, {tool} AS tool, coalesce(user, '') AS user, coalesce(tenant, '') AS tenant"
_QUARTER_OF: Final = f"began - began % {HOUR_NS // 4} AS hour"
"""When a call began, to the quarter of an hour: local time is ahead of UTC by so many of them."""

_IN_HOURS: Final = (
    "rowid IN (SELECT part.rowid FROM json_each(:cut) AS cut CROSS JOIN {0} AS part"
    f" ON part.{{1}} >= cut.value AND part.{{1}} < cut.value + {HOUR_NS})"
)
_CALLS_AS_HOURS: Final = (
    f"SELECT {_QUARTER_OF}, coalesce(provider, '') AS provider, coalesce(model, '') AS model, "
    + _WHOSE_CALL.format(tool="''")
    + ", operation NOT LIKE '% %' AND status != 'open' AS calls, coalesce(duration, 0) AS duration, "
    + f"{_SUMMED}{{more}} FROM calls WHERE {{where}}"
)
_TOOLS_AS_HOURS: Final = (
    f"SELECT {_QUARTER_OF}, '' AS provider, '' AS model, "
    + _WHOSE_CALL.format(tool="name")
    + ", 1 AS calls, coalesce(duration, 0) AS duration, "
    + ", ".join(f"{what} AS {name}" for name, what in OF_TOOL.items())
    + "{more} FROM tools WHERE {where}"
)
_CONSUMED_SUMS: Final = {
    "unsplit_tokens": "CAST(json_extract(spend, '$.consumed.tokens') AS INTEGER)",
    "cost_nano": f"CAST(round(json_extract(spend, '$.consumed.cost_usd') * {NANO}) AS INTEGER)",
    "turns": "CAST(json_extract(spend, '$.consumed.turns') AS INTEGER)",
}
_CONSUMED_AS_HOURS: Final = (
    f"SELECT {_QUARTER_OF}, '' AS provider, '' AS model, "
    + _WHOSE_CALL.format(tool="''")
    + ", 0 AS calls, 0 AS duration, "
    + ", ".join(f"coalesce({_CONSUMED_SUMS.get(name, '0')}, 0) AS {name}" for name in SUMS)
    + "{more} FROM (SELECT rowid, ended AS began, agent, user, tenant, run, session, tags, iif(json_valid(spend), spend, '{{}}') AS spend"
    f" FROM scopes WHERE kind IN ('run', 'agent') AND {REPORTED}) WHERE {{where}}"
)
_AS_HOURS: Final = (
    (_CALLS_AS_HOURS, "calls", "began"),
    (_TOOLS_AS_HOURS, "tools", "began"),
    (_CONSUMED_AS_HOURS, "scopes", "ended"),
)
"""What `hourly` adds up, each by itself, with its table and time: calls, tools, and what a run or agent had reported at its end."""

_OF_ONE_RUN: Final = ", run, session, tags"
_RUNS_AS_HOURS: Final = (
    "SELECT 0 AS hour, '' AS provider, '' AS model, '' AS agent, '' AS tool, coalesce(user, '') AS user, coalesce(tenant, '') AS tenant, "
    "max(0, coalesce(runs.requests - coalesce(inner_runs.requests, 0), 0)) AS calls, 0 AS duration, "
    + ", ".join(f"max(0, runs.{name} - coalesce(inner_runs.{name}, 0)) AS {name}" for name in SUMS)
    + f", run, session, tags FROM runs LEFT JOIN (SELECT parent AS around, {ADDED} FROM runs GROUP BY 1) AS inner_runs ON around = run"
)
"""What each run used by itself: its sums, without those of the runs in it."""

_CURVE: Final = ("scope", "scope_kind", "scope_name", "limit_kind", "limit_label", "window", "counted_for")
_REVIEW: Final = ("tool", "decision", "reason", "args_sha256", "final", "human_approved", "risk_score", "call")
_COMPARED: Final = ("requests", "turns", "input_tokens", "output_tokens", "cost_nano", "tool_calls", "refused", "errors")
_CALL_FACTS: Final = (
    *("operation", "endpoint", "provider", "model", "request_model", "http_status", "limit_reason", "cost_source", "price_date"),
    *("charged_cost", "pending", "first_chunk", "first_content", "response_id", "request_id", "output_cap", "truncated", "requests"),
)
_TOOL_FACTS: Final = ("name", "call_id", "inferred", "abandoned", "process", "agent_id")
_IS: Final = "{} = :id"
_BEGINS: Final = "({0} >= :id AND {0} < :end)"
_CALL_TITLE: Final = "operation || ' ' || coalesce(model, '')"
_SCOPE_TITLE: Final = "kind || ' ' || coalesce(name, '')"
_NAMED: Final = (
    (
        ("launch", "launches", ("launch",), "launch", "name"),
        ("run", "runs", ("run",), "run", "name"),
        ("process", "processes", ("process",), "process", "name"),
        ("call", "calls", ("call",), "run", _CALL_TITLE),
        ("tool", "tools", ("call",), "run", "'tool ' || name"),
        ("scope", "scopes", ("scope",), "run", _SCOPE_TITLE),
    ),
    (("run", "runs", ("run", "trace", "span"), "run", "name"), ("scope", "scopes", ("scope", "trace", "span"), "run", _SCOPE_TITLE)),
    (
        ("call", "calls", ("call", "trace", "span", "response_id", "request_id"), "run", _CALL_TITLE),
        ("tool", "tools", ("call", "trace", "span", "call_id"), "run", "'tool ' || name"),
    ),
)
"""Where an id may stand, in the order in which it is looked for: kind, table, columns, the run's column, and what is called by it."""


# -- pages of runs -------------------------------------------------------------------------------------------------


def _int(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _rank(row: StoredRow) -> tuple[int, str]:
    return _int(row["rank"]), row["run"]


def _facets(rows: Sequence[StoredRow], around: Mapping[str, StoredRow]) -> dict[str, tuple[tuple[str, int], ...]]:
    """Count what choosing each word would list, the most frequent first: of runs in one of `around` with the same word only that one."""
    outer = [around.get(row["parent"]) for row in rows]
    counted = {name: _counted(rows, outer, name) for name in _FACETS}
    tags: Counter[str] = Counter()
    pairs = zip(rows, outer, strict=True)
    for (written, outside), runs in Counter((row["tags"], None if each is None else each["tags"]) for row, each in pairs).items():
        own = tags_in(written).items() - tags_in(outside).items()
        tags.update({f"{key}={value}": runs for key, value in own})
    return {name: tuple(found.most_common(_MOST_FACETS)) for name, found in {**counted, "tag": tags}.items()}


def _counted(rows: Sequence[StoredRow], outer: Sequence[StoredRow | None], name: str) -> Counter[str]:
    pairs = zip(rows, outer, strict=True)
    return Counter(str(row[name]) for row, each in pairs if row[name] is not None and (each is None or each[name] != row[name]))


def _cursor(after: str) -> tuple[int, str]:
    rank, tilde, run = after.partition("~")
    if not tilde or not re.fullmatch(r"\d{1,19}", rank, re.ASCII):
        raise ConfigurationError(
            f"after={checks.show(after)} is no place in a list of runs. Give what the page before said, or leave it out."
        )
    return int(rank), run


# -- figures ------------------------------------------------------------------------------------------------------


def _grouped(keys: Sequence[str], source: str) -> str:
    """Write what adds up the rows of a source by keys."""
    whole = f"SELECT {', '.join([*keys, ''])}sum(calls) AS calls, sum(duration) AS duration, {ADDED} FROM {source}"
    return f"{whole} GROUP BY {', '.join(str(at + 1) for at in range(len(keys)))}" if keys else whole


def _as_hours(where: str, more: str = "") -> list[str]:
    """Write what chooses from each of `_AS_HOURS`; `where` may name the table and its time."""
    return [each.format(where=where.format(table, time), more=more) for each, table, time in _AS_HOURS]


def _spend_conditions(where: SpendFilter) -> tuple[list[str], dict[str, Any]]:
    chosen = {each.name: getattr(where, each.name) for each in fields(where)}
    kept = {name: value for name, value in chosen.items() if value is not None}
    return [f"coalesce({name}, '') = :{name}" for name in kept], kept
