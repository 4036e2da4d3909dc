import { useMemo, useState } from "preact/hooks";
import { Link, useLocation } from "wouter-preact";
import type { Spend, SpendRow } from "../../api.ts";
import { useGet, useKeys, useSearch } from "../../hooks.ts";
import { Empty, Failed } from "../../parts/Empty.tsx";
import { type Key, Page } from "../../parts/Frame.tsx";
import { State } from "../../parts/Icon.tsx";
import { Steps, Twist } from "../../parts/Tree.tsx";
import { save } from "../../csv.ts";
import { command } from "../../words.ts";
import "../../parts/Table.css";
import "./spend.css";

const KEYS: readonly Key[] = [
  { keys: ["j", "k"], does: "move" },
  { keys: ["←", "→"], does: "fold" },
  { keys: ["↵"], does: "open" },
];
const TIMES = [
  ["Today", "today", ""],
  ["Yesterday", "yesterday", "today"],
  ["7 days", "7d", ""],
  ["30 days", "30d", ""],
] as const;
const BY = ["user", "model", "agent", "tool", "tenant", "session", "day", "provider", "run"] as const;
const DAY = /^\d{4}-\d\d-\d\d$/;

/** The day so many days after one that the calendar names. */
function dayAfter(day: string, days = 1): string {
  const at = new Date(`${day}T12:00:00`);
  at.setDate(at.getDate() + days);
  return [at.getFullYear(), at.getMonth() + 1, at.getDate()].map((part) => String(part).padStart(2, "0")).join("-");
}

const OPTIONS = { since: "from", until: "to", user: "user", tenant: "tenant", model: "model", agent: "agent", by: "by" };

/** What is of no model are tools, and the other way round. */
const NOBODY: Record<string, string> = { model: "tool calls", tool: "model calls" };

const WAYS = [
  ["A program that was not written for it", "ravi-otel run -- python my_agent.py"],
  ["Your own program: one line, and where to keep its runs", "ravi_otel.instrument()   # and RAVI_STORE=.ravi in its environment"],
] as const;

interface Shown {
  row: SpendRow;
  key: string;
  depth: number;
  last: boolean;
}

export function SpendPage() {
  const search = useSearch();
  const [, go] = useLocation();
  const asked = new URLSearchParams(search);
  const since = asked.get("since") ?? "today";
  const until = asked.get("until") ?? "";
  const by = (asked.get("by") ?? "user,model").split(",");
  const { data, error } = useGet<Spend>(`/api/spend${search && `?${search}`}`);
  const set = (changes: Record<string, string>) => {
    const after = new URLSearchParams(search);
    for (const [name, value] of Object.entries(changes)) {
      if (value === "") after.delete(name);
      else after.set(name, value);
    }
    go(`/spend${after.size > 0 ? `?${after}` : ""}`, { replace: true });
  };
  const [dates, setDates] = useState(false);
  const cli = command("cost", new URLSearchParams([["since", since], ...[...asked].filter(([name]) => !["since", "by"].includes(name)), ["by", by.join(",")]]), OPTIONS);
  return (
    <Page name="Spend" looks="what was spent" cli={cli} keys={KEYS}>
      <div class="head">
        <h1>Spend</h1>
        {data && <p class="say">{data.says}</p>}
        <div class="acts">
          <div class="seg" role="group" aria-label="When">
            {TIMES.map(([name, from, until]) => (
              <button key={name} type="button" aria-current={since === from && (asked.get("until") ?? "") === until ? "true" : undefined} onClick={() => set({ since: from, until })}>
                {name}
              </button>
            ))}
            <button type="button" aria-expanded={dates} aria-current={DAY.test(since) ? "true" : undefined} onClick={() => setDates(!dates)}>
              From, to…
            </button>
          </div>
          {data && data.rows.length > 0 && <Csv data={data} />}
        </div>
      </div>
      {error !== null && <Failed error={error} />}
      {error !== null && search === "" && (
        <Empty ways={WAYS}>
          <p>What a program spends is kept where it has a store. Keep it:</p>
        </Empty>
      )}
      {(dates || DAY.test(since)) && (
        <div class="filters">
          <label class="soft">
            From{" "}
            <input class="field date" type="date" value={DAY.test(since) ? since : ""} onChange={(event) => set({ since: event.currentTarget.value || "today" })} />
          </label>
          <label class="soft">
            to, with that day{" "}
            <input
              class="field date"
              type="date"
              value={DAY.test(until) ? dayAfter(until, -1) : ""}
              min={DAY.test(since) ? since : undefined}
              onChange={(event) => set({ until: event.currentTarget.value && dayAfter(event.currentTarget.value) })}
            />
          </label>
        </div>
      )}
      <div class="filters" hidden={error !== null && search === ""}>
        <span class="soft">Rows</span>
        {by.map((each, at) => (
          <span key={each} class="chip">
            <span class="k">{at === 0 ? "by" : "then"}</span>
            {each}
            {by.length > 1 && (
              <button type="button" class="x" aria-label={`Take out ${each}`} onClick={() => set({ by: by.filter((other) => other !== each).join(",") })}>
                ×
              </button>
            )}
          </span>
        ))}
        {BY.filter((each) => !by.includes(each)).map((each) => (
          <button key={each} type="button" class="chip add" onClick={() => set({ by: by.length < 2 ? [...by, each].join(",") : [by[0], each].join(",") })}>
            + {each}
          </button>
        ))}
        {(data?.tags ?? [])
          .filter(([each]) => !by.includes(each))
          .map(([each, shown]) => (
            <button key={each} type="button" class="chip add" onClick={() => set({ by: by.length < 2 ? [...by, each].join(",") : [by[0], each].join(",") })}>
              + tag {shown}
            </button>
          ))}
        <span class="dim mono address cut">
          /spend
          {search && `?${search}`}
        </span>
      </div>
      {data && data.rows.length === 0 && (
        <Empty ways={WAYS}>
          <p>Nothing was spent in that time, as far as this store knows.</p>
        </Empty>
      )}
      {data && data.rows.length > 0 && (
        <>
          <Chart data={data} />
          <Rows data={data} by={by} since={since} until={until} />
        </>
      )}
    </Page>
  );
}

function Csv({ data }: { data: Spend }) {
  const line = (outer: SpendRow, inner: SpendRow | null) => {
    const row = inner ?? outer;
    const inside = inner === null ? "" : (inner.key ?? "none");
    return [outer.key ?? "none", inside, row.cost, row.calls, row.input, row.output, String(row.refused)];
  };
  const lines = () => data.rows.flatMap((row) => [line(row, null), ...row.inside.map((each) => line(row, each))]);
  const head = [data.by[0] ?? "", data.by[1] ?? "", "cost", "calls", "input", "output", "refused"];
  return (
    <button type="button" class="btn" onClick={() => save("spend.csv", [head, ...lines()])}>
      CSV
    </button>
  );
}

function Chart({ data }: { data: Spend }) {
  const width = 100 / Math.max(1, data.columns.length);
  const each = Math.max(1, Math.ceil(data.columns.length / 8));
  return (
    <figure class="spent">
      <figcaption class="legend">
        {data.series.map(([name, cost], at) => (
          <span key={name} class="k">
            <i class={`sw s${at + 1}`} />
            <span class="cut" title={name}>
              {name}
            </span>
            <span class="fig">{cost}</span>
          </span>
        ))}
        {data.columns.some((column) => column.parts.some(([series]) => series === data.series.length)) && (
          <span class="k">
            <i class="sw s5" /> all others
          </span>
        )}
        {data.columns.some((column) => column.unknown) && (
          <span class="k">
            <i class="sw unpriced" /> calls without a price
          </span>
        )}
      </figcaption>
      <div class="chart">
        <div class="stack" role="img" aria-label={data.columns.map((column) => `${column.at}: ${column.text}`).join(", ")}>
          {data.ticks.map(([share, text]) => (
            <span key={text} class="y" style={{ bottom: `${share}%` }}>
              <span>{text}</span>
            </span>
          ))}
          {data.columns.map((column, at) => {
            let bottom = 0;
            return (
              <div key={column.at} class="pillar" title={`${column.at}: ${column.text}`} style={{ left: `${at * width}%`, width: `${width}%` }}>
                {column.parts.map(([series, share]) => {
                  const from = bottom;
                  bottom += share;
                  return <i key={series} class={`s${series + 1}`} style={{ bottom: `${from}%`, height: `${share}%` }} />;
                })}
                {column.unknown && <i class="unpriced cap" style={{ bottom: `${bottom}%` }} />}
                {at % each === 0 && <span class="x">{column.at.slice(-5)}</span>}
              </div>
            );
          })}
        </div>
      </div>
    </figure>
  );
}

function Rows({ data, by, since, until }: { data: Spend; by: readonly string[]; since: string; until: string }) {
  const [open, setOpen] = useState<ReadonlySet<string>>(() => new Set(data.rows[0] ? ["0"] : []));
  const [at, setAt] = useState(0);
  const [, go] = useLocation();
  const lines = useMemo(() => {
    const found: Shown[] = [];
    data.rows.forEach((row, place) => {
      found.push({ row, key: String(place), depth: 0, last: true });
      if (open.has(String(place)))
        row.inside.forEach((each, inner) => found.push({ row: each, key: `${place}/${inner}`, depth: 1, last: inner === row.inside.length - 1 }));
    });
    return found;
  }, [data.rows, open]);
  const fold = (key: string, on: boolean) =>
    setOpen((before) => {
      const after = new Set(before);
      if (on) after.add(key);
      else after.delete(key);
      return after;
    });
  /** The runs in which a group was spent; a group without a name has no address. */
  const to = ({ row, key, depth }: Shown): string | null => {
    const asked = new URLSearchParams();
    const outer = depth === 1 ? data.rows[Number(key.split("/")[0])] : row;
    const names = depth === 1 ? [by[0], by[1]] : [by[0]];
    const values = depth === 1 ? [outer?.value, row.value] : [row.value];
    for (const [place, name] of names.entries()) {
      const value = values[place];
      if (name === "run" && value) return `/runs/${encodeURIComponent(value)}`;
      if (!name || !value) return null;
      if (name === "day") {
        asked.set("since", value);
        asked.set("until", dayAfter(value));
      } else if (name.startsWith("tag.")) asked.set("tag", `${name.slice(4)}=${value}`);
      else if (["user", "tenant", "agent", "model", "session"].includes(name)) asked.set(name, value);
      else return null;
    }
    if (!asked.has("since")) {
      asked.set("since", since);
      if (until) asked.set("until", until);
    }
    return `/runs?${asked}`;
  };
  const line = lines[at];
  const href = line && to(line);
  useKeys({
    j: () => setAt(Math.min(lines.length - 1, at + 1)),
    k: () => setAt(Math.max(0, at - 1)),
    ArrowLeft: () => line && fold(line.key, false),
    ArrowRight: () => line && fold(line.key, true),
    Enter: () => href && go(href),
  });
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Who spent what">
      <table class="table spend stacks" role="table">
        <colgroup>
          <col class="s-name" />
          <col />
          <col class="s-cost" />
          <col class="s-n" />
          <col class="s-n" />
          <col class="s-n" />
          <col class="s-n" />
          <col class="s-n" />
          <col class="s-each" />
          <col class="s-n" />
        </colgroup>
        <thead role="rowgroup">
          <tr role="row">
            <th role="columnheader" class="s-by">{by.join(", ")}</th>
            <th role="columnheader">Share</th>
            <th role="columnheader" class="n sorted" aria-sort="descending">
              Cost ↓
            </th>
            <th role="columnheader" class="n">of all</th>
            <th role="columnheader" class="n">Calls</th>
            <th role="columnheader" class="n">Input</th>
            <th role="columnheader" class="n">Cached</th>
            <th role="columnheader" class="n">Output</th>
            <th role="columnheader" class="n">A call</th>
            <th role="columnheader">Refused</th>
          </tr>
        </thead>
        <tbody role="rowgroup">
          {lines.map((shown, place) => {
            const { row, key, depth } = shown;
            const name = row.key ?? NOBODY[by[depth] ?? ""] ?? `no ${by[depth] ?? "name"} named`;
            const address = to(shown);
            return (
              <tr key={key} role="row" class={depth === 1 ? "inside" : ""} aria-selected={place === at} onClick={() => setAt(place)}>
                <td role="cell" class="s-who">
                  <span class="node">
                    {depth === 1 && <Steps guide={[!shown.last]} />}
                    {row.inside.length > 0 && <Twist open={open.has(key)} name={name} onClick={() => fold(key, !open.has(key))} />}
                    <span class={row.key === null ? "name dim" : "name"} title={name}>
                      {address ? (
                        <Link class="row" href={address}>
                          {name}
                        </Link>
                      ) : (
                        name
                      )}
                    </span>
                  </span>
                </td>
                <td role="cell" class="s-bar">
                  <span class="share">
                    {row.parts.map(([series, width], part) => (
                      <i key={part} class={`s${series + 1}`} style={{ width: `${width}%` }} />
                    ))}
                    {row.unknown && <i class={row.parts.length > 0 ? "unpriced more" : "unpriced"} title="calls without a price" />}
                  </span>
                </td>
                <td role="cell" class="n s-money">{row.cost}</td>
                <td role="cell" class="n s-share">{row.share}</td>
                <td role="cell" class="n s-part" data-label="calls">{row.calls}</td>
                <td role="cell" class="n s-part" data-label="in">{row.input}</td>
                <td role="cell" class="n s-part" data-label="cached">{row.cached}</td>
                <td role="cell" class="n s-part" data-label="out">{row.output}</td>
                <td role="cell" class="n s-part" data-label="a call">{row.each}</td>
                <td role="cell" class="s-refused">{row.refused > 0 ? <State tone="refused">{row.refused.toLocaleString("en-US")}</State> : <span class="dim">none</span>}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}
