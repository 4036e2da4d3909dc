import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Link, useLocation } from "wouter-preact";
import { type Bar, get, type RunRow, type Runs, sentence, type Tone } from "../../api.ts";
import { useKeys, useMedia, useSearch } from "../../hooks.ts";
import { now } from "../../live.ts";
import { Empty, Failed } from "../../parts/Empty.tsx";
import { Filters } from "../../parts/Filters.tsx";
import { type Key, Page } from "../../parts/Frame.tsx";
import { State } from "../../parts/Icon.tsx";
import { Meter, Share } from "../../parts/LimitBar.tsx";
import { useVirtual } from "../../virtual.ts";
import { save } from "../../csv.ts";
import { command, moment, visible } from "../../words.ts";
import "../../parts/Table.css";
import "./runs.css";

const KEYS: readonly Key[] = [
  { keys: ["j", "k"], does: "move" },
  { keys: ["↵"], does: "open" },
  { keys: ["/"], does: "search" },
];
const RAIL = ["status", "tenant", "user", "model", "tag", "stop_reason"] as const;
/** What the command line calls what the address says. */
const OPTIONS = { since: "since", until: "until", status: "status", user: "user", tenant: "tenant", agent: "agent", session: "session", model: "model", tag: "tag", stop_reason: "stop-reason", text: "text", order: "sort" };
/** What only an address asks for, from other pages: it is shown, and can be taken out. */
const BESIDE = ["until", "agent", "session"] as const;
const SINCE = ["today", "yesterday", "1h", "24h", "7d", "30d"] as const;
const ROW = 28;

interface Known {
  rows: RunRow[];
  words: (readonly [Tone, string])[];
  glances: Runs["glances"];
  total: number;
  after: string | null;
  spent: Runs["page"]["spent"];
  facets: NonNullable<Runs["page"]["facets"]>;
}

/** The runs that fit, page by page as they are scrolled to; the first page again when what runs is another. */
function useRuns(search: string, mark: string) {
  const [known, setKnown] = useState<Known | null>(null);
  const [error, setError] = useState<string | null>(null);
  const asking = useRef(false);
  useEffect(() => {
    const abort = new AbortController();
    asking.current = true;
    get<Runs>(`/api/runs${search && `?${search}`}`, abort.signal)
      .then(
        ({ page, words, glances }) => {
          setKnown({ rows: page.rows, words, glances, total: page.total, after: page.after, spent: page.spent, facets: page.facets ?? {} });
          setError(null);
        },
        (failed: unknown) => {
          if (!abort.signal.aborted) setError(sentence(failed));
        },
      )
      .finally(() => {
        asking.current = false;
      });
    return () => abort.abort();
  }, [search, mark]);
  const more = async () => {
    if (asking.current || !known?.after) return;
    asking.current = true;
    try {
      const asked = new URLSearchParams(search);
      asked.set("after", known.after);
      const { page, words, glances } = await get<Runs>(`/api/runs?${asked}`);
      setKnown(
        (before) =>
          before && {
            ...before,
            rows: [...before.rows, ...page.rows],
            words: [...before.words, ...words],
            glances: [...before.glances, ...glances],
            after: page.after,
          },
      );
    } catch (failed) {
      setError(sentence(failed));
    } finally {
      asking.current = false;
    }
  };
  return { known, error, more };
}

export function RunsPage() {
  const search = useSearch();
  const [, go] = useLocation();
  const mark = useMemo(() => (now.value?.rows ?? []).filter((row) => row.kind === "run").map((row) => row.run).join(), [now.value]);
  const { known, error, more } = useRuns(search, mark);
  const asked = new URLSearchParams(search);
  const kinds = [["since", SINCE] as const, ...BESIDE.map((name) => [name, []] as const), ...RAIL.map((name) => [name, (known?.facets[name] ?? []).map(([value]) => value)] as const)];
  const cli = command("runs", asked, OPTIONS);
  const isEmpty = known !== null && known.total === 0;
  return (
    <Page name="Runs" looks={known ? `${known.rows.length.toLocaleString("en-US")} of ${known.total.toLocaleString("en-US")}` : "the store"} cli={cli} keys={KEYS} fixed>
      <div class="head">
        <h1>Runs</h1>
        {known && known.total > 0 && (
          <p class="say">
            <span>
              <span class="fig">{known.total.toLocaleString("en-US")}</span> {known.total === 1 ? "run" : "runs"}
            </span>
            {known.spent && <Totals spent={known.spent} />}
          </p>
        )}
        {known && known.total > 0 && (
          <div class="acts">
            <Csv known={known} search={search} />
          </div>
        )}
      </div>
      {error !== null && <Failed error={error} />}
      {(error !== null || isEmpty) && search === "" ? (
        <Empty ways={WAYS}>
          <p>A run is kept where a program has a store. Keep one:</p>
        </Empty>
      ) : (
        <>
          <Filters path="/runs" search={search} kinds={kinds} placeholder="Search names, prompts, answers" onGo={(to) => go(to, { replace: true })} />
          {isEmpty && <p class="failed dim">No run fits. Take out a filter.</p>}
          {known && known.total > 0 && <Table known={known} search={search} onMore={more} />}
        </>
      )}
    </Page>
  );
}

type Spent = NonNullable<Runs["page"]["spent"]>;

/** What all runs that fit came to, as the server adds it up. */
function Totals({ spent }: { spent: Spent }) {
  return (
    <>
      <span>
        cost <span class="fig">{spent.cost_text}</span>
      </span>
      <span>
        <span class="fig">{spent.requests.toLocaleString("en-US")}</span> {spent.requests === 1 ? "call" : "calls"}
      </span>
      <span>
        <span class="fig">{spent.tokens_text}</span> tokens
      </span>
      {spent.refused > 0 && (
        <span>
          <span class="fig">{spent.refused.toLocaleString("en-US")}</span> refused
        </span>
      )}
    </>
  );
}

const CSV = ["started", "run", "name", "how it ended", "took, s", "calls", "tokens", "cost", "refused", "user", "tenant"];

/** All runs that fit, also those that were not scrolled to. */
function Csv({ known, search }: { known: Known; search: string }) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<string | null>(null);
  const gather = async () => {
    setBusy(true);
    setError(null);
    try {
      const lines: string[][] = [];
      for (let after: string | null = ""; after !== null; ) {
        const asked = new URLSearchParams(search);
        if (after) asked.set("after", after);
        const { page, words }: Runs = await get<Runs>(`/api/runs?${asked}`);
        page.rows.forEach((row, at) => {
          const { spent } = row;
          const told = [row.duration_text, String(spent.requests), spent.tokens_text, spent.cost_text, String(spent.refused)];
          lines.push([new Date(row.began / 1e6).toISOString(), row.run, row.name ?? "", words[at]?.[1] ?? "", ...told, row.user_text ?? "", row.tenant_text ?? ""]);
        });
        after = page.after;
      }
      save("runs.csv", [CSV, ...lines]);
    } catch (failed) {
      setError(sentence(failed));
    } finally {
      setBusy(false);
    }
  };
  return (
    <>
      {error !== null && <span class="said-no" role="alert">{error}</span>}
      <button type="button" class="btn" disabled={busy} onClick={gather} title={`All ${known.total.toLocaleString("en-US")} that fit`}>
        {busy ? "Gathering…" : "CSV"}
      </button>
    </>
  );
}

const WAYS = [
  ["A program that was not written for it", "ravi-otel run --limit cost=0.50usd -- python my_agent.py"],
  ["Your own program: one line, and where to keep its runs", "ravi_otel.instrument()   # and RAVI_STORE=.ravi in its environment"],
] as const;

function Table({ known, search, onMore }: { known: Known; search: string; onMore: () => void }) {
  const [, go] = useLocation();
  const [at, setAt] = useState(0);
  const isPhone = useMedia("(max-width: 640px)");
  const scroller = useRef<HTMLDivElement>(null);
  const virtual = useVirtual(known.rows.length, isPhone ? 64 : ROW, scroller, isPhone ? 0 : ROW);
  const last = virtual.items.at(-1)?.index ?? 0;
  useEffect(() => {
    if (last >= known.rows.length - 40) onMore();
  }, [last, known.rows.length]);
  const move = (step: number) => {
    const next = Math.max(0, Math.min(known.rows.length - 1, at + step));
    setAt(next);
    virtual.show(next);
  };
  const row = known.rows[at];
  const order = new URLSearchParams(search).get("order") ?? "began";
  useKeys({
    j: () => move(1),
    k: () => move(-1),
    ArrowDown: () => move(1),
    ArrowUp: () => move(-1),
    Enter: () => row && go(`/runs/${encodeURIComponent(row.run)}`),
  });
  return (
    <div class="with-rail">
      <Rail known={known} search={search} />
      <div ref={scroller} class="runs-scroll" tabIndex={0} role="region" aria-label="Runs">
        <div role="table" aria-label="Runs" aria-rowcount={known.total + 1}>
          <div class="runs-row runs-head" role="row">
            {HEADS.map(([name, kind, by]) => (
              <span key={name} class={by === order ? `${kind} sorted` : kind} role="columnheader" aria-sort={by === order ? "descending" : undefined}>
                {by === null ? name : <Link href={asking(search, "order", by === "began" ? null : by)}>{by === order ? `${name} ↓` : name}</Link>}
              </span>
            ))}
          </div>
          <div class="runs-body" role="rowgroup" style={{ height: `${virtual.height}px` }}>
            {virtual.items.map((item) => {
              const each = known.rows[item.index];
              const [tone, word] = known.words[item.index] ?? ["unknown", ""];
              if (!each) return null;
              return (
                <div
                  key={each.run}
                  class="runs-row"
                  role="row"
                  aria-rowindex={item.index + 2}
                  aria-selected={item.index === at}
                  onClick={() => setAt(item.index)}
                  style={{ top: `${item.start - (isPhone ? 0 : ROW)}px` }}
                >
                  <span class="n left r-when" role="cell">
                    {moment(each.began / 1e9)}
                  </span>
                  <span class="r-name cut" role="cell" title={visible(each.name ?? each.run)}>
                    <Link class="row" href={`/runs/${encodeURIComponent(each.run)}`}>
                      {visible(each.name || each.run)}
                    </Link>
                  </span>
                  <span class="r-end" role="cell">
                    <State tone={tone} title={word}>
                      {word}
                    </State>
                  </span>
                  <span class="n r-took" role="cell">
                    {each.duration_text}
                  </span>
                  <span class="n r-calls" role="cell">
                    {each.spent.requests.toLocaleString("en-US")}
                  </span>
                  <span class="n r-tok" role="cell">
                    {each.spent.tokens_text}
                  </span>
                  <span class="n r-cost" role="cell">
                    {each.spent.cost_text}
                  </span>
                  <span class="r-over" role="cell">
                    <Spark points={known.glances[item.index]?.spent ?? []} />
                  </span>
                  <Fullest bar={barOf(each.run) ?? known.glances[item.index]?.limit ?? null} known={each.status !== "lost" && each.status !== "running"} />
                  <span class="r-refused" role="cell">
                    {each.spent.refused > 0 ? <State tone="refused">{each.spent.refused.toLocaleString("en-US")} refused</State> : <span class="dim">none</span>}
                  </span>
                  <span class="cut soft r-user" role="cell" title={visible(each.user_text ?? "")}>
                    {visible(each.user_text ?? "—")}
                  </span>
                  <span class="cut soft r-tenant" role="cell" title={visible(each.tenant_text ?? "")}>
                    {visible(each.tenant_text ?? "—")}
                  </span>
                </div>
              );
            })}
          </div>
        </div>
      </div>
    </div>
  );
}

/** The fullest limit of a run that is open now; those of others are kept when they end. */
const barOf = (run: string): Bar | null => now.value?.rows.find((row) => row.run === run && row.kind === "run")?.bars[0] ?? null;

/** How the cost of a run grew from its begin to its end. */
function Spark({ points }: { points: readonly number[] }) {
  if (points.length === 0) return null;
  const step = 56 / points.length;
  return (
    <svg class="spark" viewBox="0 0 56 16" aria-hidden="true">
      <path d={`M0 15${points.map((share, at) => `L${((at + 1) * step).toFixed(1)} ${(15 - share * 0.14).toFixed(1)}`).join("")}`} />
    </svg>
  );
}

function Fullest({ bar, known }: { bar: Bar | null; known: boolean }) {
  if (bar === null)
    return (
      <span class="r-limit dim" role="cell" title={known ? undefined : "Limits are kept when a run ends: nobody saw this one end"}>
        {known ? "no limit" : "?"}
      </span>
    );
  return (
    <span class="r-limit limit" role="cell" data-tone={bar.tone}>
      <Meter bar={bar} />
      <Share bar={bar} />
      <span class="dim cut" title={bar.text}>
        {bar.title}
      </span>
    </span>
  );
}

/** A column's name, its kind, and the word by which the address orders the runs by it. */
const HEADS = [
  ["Started", "r-when", "began"],
  ["Run", "r-name", null],
  ["How it ended", "r-end", null],
  ["Took, s", "n r-took", "duration"],
  ["Calls", "n r-calls", "requests"],
  ["Tokens", "n r-tok", "tokens"],
  ["Cost", "n r-cost", "cost"],
  ["Over time", "r-over", null],
  ["Fullest limit", "r-limit", null],
  ["Refused", "r-refused", "refused"],
  ["User", "r-user", null],
  ["Tenant", "r-tenant", null],
] as const;

/** The address that asks the same but for one thing. */
function asking(search: string, name: string, value: string | null): string {
  const after = new URLSearchParams(search);
  if (value === null) after.delete(name);
  else after.set(name, value);
  return `/runs${after.size > 0 ? `?${after}` : ""}`;
}

/** The shape and the word of each status, as the rows have them; of all others the status itself, and the shape of what was let go. */
const STATUSES: Record<string, readonly [Tone, string]> = {
  running: ["run", "running"],
  ok: ["ok", "ok"],
  stopped: ["refused", "stopped"],
  error: ["error", "own error"],
  lost: ["unknown", "lost"],
};

/** What the runs can be narrowed down by, with how many each leaves. */
function Rail({ known, search }: { known: Known; search: string }) {
  const asked = new URLSearchParams(search);
  return (
    <aside class="rail" aria-label="Narrow down">
      {RAIL.map((name) => {
        const values = known.facets[name] ?? [];
        if (values.length === 0) return null;
        return (
          <section key={name}>
            <h2>{name.replace("_", " ")}</h2>
            <ul>
              {name === "status" && (
                <li>
                  <Link href={asking(search, name, null)} aria-current={asked.has(name) ? undefined : "true"}>
                    any
                    {!asked.has(name) && <span class="fig">{known.total.toLocaleString("en-US")}</span>}
                  </Link>
                </li>
              )}
              {values.slice(0, 8).map(([value, runs]) => {
                const on = asked.get(name) === value;
                return (
                  <li key={value}>
                    <Link href={asking(search, name, on ? null : value)} aria-current={on ? "true" : undefined}>
                      {name === "status" ? (
                        <State tone={STATUSES[value]?.[0] ?? "paused"}>{STATUSES[value]?.[1] ?? visible(value)}</State>
                      ) : (
                        <span class="cut" title={visible(value)}>
                          {visible(value) || "none"}
                        </span>
                      )}
                      <span class="fig">{runs.toLocaleString("en-US")}</span>
                    </Link>
                  </li>
                );
              })}
            </ul>
          </section>
        );
      })}
    </aside>
  );
}
