import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Link, useLocation } from "wouter-preact";
import { type Bar, type Find, type NowRow, type Run, told, type TreeRow } from "../../api.ts";
import { useGet, useKeys, useMedia, useSearch, useTitle } from "../../hooks.ts";
import { now } from "../../live.ts";
import { Failed } from "../../parts/Empty.tsx";
import { type Key, Page } from "../../parts/Frame.tsx";
import { Icon, State } from "../../parts/Icon.tsx";
import { Meter, Share } from "../../parts/LimitBar.tsx";
import { Steps } from "../../parts/Tree.tsx";
import { useVirtual } from "../../virtual.ts";
import { many, quoted, span, visible } from "../../words.ts";
import { actsOf, type Asked, Steering, WORDS } from "../now/Steering.tsx";
import { Curves } from "./Curves.tsx";
import { Ids } from "./Ids.tsx";
import { ASKED, Item } from "./Item.tsx";
import "../../parts/Table.css";
import "./run.css";

const KEYS: readonly Key[] = [
  { keys: ["j", "k"], does: "move" },
  { keys: ["←", "→"], does: "fold" },
  { keys: ["1", "–", "4"], does: "tabs" },
  { keys: ["p"], does: "pause" },
  { keys: ["l"], does: "limit" },
  { keys: ["x"], does: "cancel" },
];
const ROW = 24;

/** A line that is shown: whether something is below it, and the turns that it stands for where many look alike. */
interface Line {
  row: TreeRow;
  folds: boolean;
  turns: readonly TreeRow[] | null;
}

const FEWEST = 10;
const FIRST = 2;
const LAST = 3;

/** Turns that went well, one after the other in one place: of many, the first and the last are shown, and those between in one line. */
function alike(rows: readonly TreeRow[], from: number): number {
  const [, depth] = rows[from] as TreeRow;
  let at = from;
  for (let row = rows[at]; row && row[1] === depth && isCall(row) && row[4] === "ok"; row = rows[++at]);
  return at - from;
}

function shown(rows: readonly TreeRow[], folded: ReadonlySet<string>, opened: ReadonlySet<string>): Line[] {
  const lines: Line[] = [];
  let hidden = Infinity;
  for (let at = 0; at < rows.length; at++) {
    const row = rows[at] as TreeRow;
    const [id, depth] = row;
    if (depth > hidden) continue;
    hidden = folded.has(id) ? depth : Infinity;
    const like = isCall(row) ? alike(rows, at) : 0;
    if (like < FEWEST) {
      for (let place = at; place < at + Math.max(1, like); place++) {
        const each = rows[place] as TreeRow;
        lines.push({ row: each, folds: (rows[place + 1]?.[1] ?? -1) > each[1], turns: null });
      }
      at += Math.max(1, like) - 1;
      continue;
    }
    const line = (each: TreeRow): Line => ({ row: each, folds: false, turns: null });
    const between = rows.slice(at + FIRST, at + like - LAST);
    const key = (between[0] as TreeRow)[0];
    lines.push(...rows.slice(at, at + FIRST).map(line), { row: together(between), folds: true, turns: between });
    if (opened.has(key)) lines.push(...between.map((each): Line => line([each[0], each[1] + 1, ...each.slice(2)] as TreeRow)));
    lines.push(...rows.slice(at + like - LAST, at + like).map(line));
    at += like - 1;
  }
  return lines;
}

/** One line for many turns: how many calls, and how often each tool; it adds up neither tokens nor money. */
function together(turns: readonly TreeRow[]): TreeRow {
  const [first] = turns as [TreeRow];
  const last = turns.at(-1) as TreeRow;
  const tools = new Map<string, number>();
  for (const [, , kind, title] of turns) if (kind === "tool") tools.set(title, (tools.get(title) ?? 0) + 1);
  const calls = turns.length - [...tools.values()].reduce((sum, each) => sum + each, 0);
  const parts = [...(calls > 0 ? [many(calls, "turn")] : []), ...[...tools].slice(0, 3).map(([name, times]) => `${times} × ${name}`)];
  return [`turns/${first[0]}`, first[1], "turns", parts.join(", "), "ok", first[5], last[5] + (last[6] ?? 0) - first[5], "", "", "", "", []];
}

/** A run's rows, with the calls that wait for a person now: those are kept when they have ended. */
function withAsked(data: Run, open: readonly NowRow[]): readonly TreeRow[] {
  const rows = [...data.rows];
  for (const { note, scope } of open) {
    if (!note?.ask || note.asked_at == null || rows.length === 0) continue;
    const at = Math.max(0, rows.findIndex(([id]) => id === scope));
    const depth = (rows[at] as TreeRow)[1];
    let next = at + 1;
    while (next < rows.length && (rows[next] as TreeRow)[1] > depth) next++;
    const begin = Math.min(data.length, Math.max(0, note.asked_at * 1000 - data.run.began / 1e6));
    rows.splice(next, 0, [`${ASKED}${note.ask}`, depth + 1, "tool", note.text, "wait", begin, null, "", "", "", "waits for approval", []]);
  }
  return rows;
}

/** For each line, at which levels something follows below it: one bit a level. */
function followed(lines: readonly Line[]): Uint16Array {
  const found = new Uint16Array(lines.length);
  let below = 0;
  for (let at = lines.length - 1; at >= 0; at--) {
    const level = Math.min((lines[at] as Line).row[1], MOST_STEPS);
    const own = 1 << level;
    found[at] = below & (2 * own - 1);
    below = (below & (own - 1)) | own;
  }
  return found;
}

const MOST_STEPS = 12;
const guideOf = (depth: number, mask: number): boolean[] => Array.from({ length: Math.min(depth, MOST_STEPS) }, (_, at) => (mask & (2 << at)) !== 0);

const STEPS_S = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400];
const MOST_TICKS = 6;

/** One time on an axis: in milliseconds along a run of less than a second, else in seconds, from a minute on as a clock has it. */
function timeText(at: number, step: number, seconds: number): string {
  if (at === 0) return "0";
  if (seconds < 1) return `${Math.round(at * 1000)} ms`;
  return seconds < 60 ? `${at.toFixed(step < 0.1 ? 2 : step < 1 ? 1 : 0)} s` : span(at);
}

/** Round times along a run of that many milliseconds: where each stands, in percent, and what it says. */
function ticksOf(length: number): (readonly [number, string])[] {
  const seconds = length / 1000;
  const step = STEPS_S.find((each) => seconds / each <= MOST_TICKS) ?? Math.ceil(seconds / MOST_TICKS);
  const number = Math.floor((seconds * 0.95) / step);
  return Array.from({ length: number + 1 }, (_, at) => [((at * step) / seconds) * 100, timeText(at * step, step, seconds)]);
}

const MOST_LIMITS = 4;

/** The limits of a run that still runs, and of what is open in it, the fullest first: they are kept where it ends. */
function limitsNow(rows: readonly NowRow[]): Bar[] {
  const bars = rows.flatMap((row) => row.bars.map((bar) => ({ ...bar, title: `${row.name} · ${bar.title}` })));
  return bars.sort((a, b) => b.used - a.used).slice(0, MOST_LIMITS);
}

export function RunPage({ id }: { id: string }) {
  const open = (now.value?.rows ?? []).filter((row) => row.run === id);
  const running = open.find((row) => row.kind === "run");
  const mark = running ? `${running.calls}/${running.cost}` : "over";
  const { data, error, isReading } = useRun(id, mark);
  const name = visible(data?.run.name ?? id);
  return (
    <Page name={name} looks="one run of the store" cli={`ravi-otel show ${quoted(id)} --content`} keys={KEYS} fixed>
      {error !== null && (
        <>
          <div class="head">
            <h1>Run</h1>
          </div>
          <Failed error={error} />
          <Elsewhere id={id} />
        </>
      )}
      {error === null && data && <Whole data={data} name={name} open={open} isReading={isReading} />}
    </Page>
  );
}

const FIRST_LINES = 2000;

/** One run: of a large one the first lines are there at once, and all of it when the server has read it. */
function useRun(id: string, mark: string): { data: Run | null; error: string | null; isReading: boolean } {
  const path = `/api/runs/${encodeURIComponent(id)}`;
  const begun = useRef(mark);
  const first = useGet<Run>(`${path}?most=${FIRST_LINES}`);
  const wantsAll = first.data !== null && (first.data.left_out > 0 || mark !== begun.current);
  const all = useGet<Run>(wantsAll ? path : null, mark);
  return { data: all.data ?? first.data, error: first.error ?? all.error, isReading: all.data === null && (first.data?.left_out ?? 0) > 0 };
}

/** An id that is no run's: what it is of instead, such as the call or the trace that an error named. */
function Elsewhere({ id }: { id: string }) {
  const { data } = useGet<Find>(`/api/find?text=${encodeURIComponent(id)}`);
  const [, go] = useLocation();
  const paths = (data?.found ?? []).filter(([kind, path]) => kind !== "said" && path.startsWith("/runs/")).map(([, path]) => path);
  const runs = new Set(paths.map((path) => path.split("?")[0]));
  const [only] = paths.length === 1 ? paths : runs;
  useEffect(() => {
    if (runs.size === 1 && only && only !== `/runs/${encodeURIComponent(id)}`) go(only, { replace: true });
  }, [runs.size, only]);
  return (
    <p class="failed">
      <Link href="/runs">See all runs</Link>
    </p>
  );
}

/** A run in a file of its own: no other page, and nothing that changes. */
export function ExportedRun({ data, open, at }: { data: Run; open: readonly NowRow[]; at: string }) {
  const name = visible(data.run.name ?? data.run.run);
  useTitle(name);
  return (
    <div class="frame fixed">
      <header class="top">
        <span class="brand">ravi</span>
        <span class="nav soft exported">One run, exported at {at}: nothing here changes any more.</span>
      </header>
      <main class="main">
        <Whole data={data} name={name} open={open} />
      </main>
    </div>
  );
}

const KEYS_OF: Record<string, readonly Asked["op"][]> = { p: ["resume", "stop", "pause"], l: ["set_limit"], x: ["close", "cancel"] };

interface WholeProps {
  data: Run;
  name: string;
  open?: readonly NowRow[];
  isReading?: boolean;
}

function Whole({ data, name, open = [], isReading = false }: WholeProps) {
  const search = useSearch();
  const [, go] = useLocation();
  const [folded, setFolded] = useState<ReadonlySet<string>>(new Set());
  const wanted = new URLSearchParams(search).get("item");
  const [opened, setOpened] = useState<ReadonlySet<string>>(() => new Set(holding(data.rows, wanted)));
  const asked = open.map((row) => row.note?.ask ?? "").join();
  const rows = useMemo(() => withAsked(data, open), [data, asked]);
  const lines = useMemo(() => shown(rows, folded, opened), [rows, folded, opened]);
  const guides = useMemo(() => followed(lines), [lines]);
  const ticks = useMemo(() => ticksOf(data.length), [data.length]);
  const limits = data.limits.length > 0 ? data.limits : limitsNow(open);
  const waits = told === null ? open.find((row) => row.note?.ask) : undefined;
  const refused = lines.findIndex(({ row }) => row[4] === "refused" && isCall(row));
  const [chosen, setChosen] = useState(wanted);
  const stood = useRef(0);
  const place = useMemo(() => (chosen === null ? refused : lines.findIndex(({ row }) => row[0] === chosen)), [lines, chosen]);
  const at = place >= 0 ? place : Math.min(stood.current, lines.length - 1);
  stood.current = at;
  const selected = lines[at]?.row;
  const isPhone = useMedia("(max-width: 640px)");
  const scroller = useRef<HTMLDivElement>(null);
  const above = data.curves.length > 0 ? 149 : 41;
  const virtual = useVirtual(lines.length, ROW, scroller, above);
  useEffect(() => setOpened((before) => new Set([...before, ...holding(data.rows, chosen)])), [isReading]);
  useEffect(() => {
    if (at > 0) virtual.show(at);
  }, [isReading]); // where all of it came, what is open stands elsewhere

  const choose = (next: number) => {
    const row = lines[next]?.row;
    setChosen(row?.[0] ?? null);
    if (row && row[0] && row[2] !== "turns" && told === null) go(`${location.pathname}?item=${encodeURIComponent(row[0])}`, { replace: true });
  };
  const move = (step: number) => {
    const next = Math.max(0, Math.min(lines.length - 1, at + step));
    choose(next);
    virtual.show(next);
  };
  const fold = (id: string, on: boolean) => {
    const turns = id.startsWith("turns/");
    const change = (before: ReadonlySet<string>) => {
      const after = new Set(before);
      if (on !== turns) after.add(turns ? id.slice(6) : id);
      else after.delete(turns ? id.slice(6) : id);
      return after;
    };
    (turns ? setOpened : setFolded)(change);
  };
  const top = told === null ? open.find((row) => row.kind === "run") : undefined;
  const [asking, setAsking] = useState<Asked | null>(null);
  const press = (key: string) => {
    const op = KEYS_OF[key]?.find((each) => top?.can.includes(each));
    if (top && op) setAsking({ op, row: top });
  };
  const isOpen = (id: string) => (id.startsWith("turns/") ? opened.has(id.slice(6)) : !folded.has(id));
  useKeys({
    j: () => move(1),
    k: () => move(-1),
    ArrowDown: () => move(1),
    ArrowUp: () => move(-1),
    ArrowLeft: () => selected && fold(selected[0], true),
    ArrowRight: () => selected && fold(selected[0], false),
    p: () => press("p"),
    l: () => press("l"),
    x: () => press("x"),
  });
  return (
    <>
      <div class="runhead">
        <div class="line1">
          {told === null && (
            <>
              <Link href="/runs" class="soft">
                Runs
              </Link>
              <span class="dim">/</span>
            </>
          )}
          <h1 class="cut" title={name}>
            {name}
          </h1>
          <State tone={data.tone} title={data.word}>
            {data.word}
          </State>
          {waits?.note?.ask && (
            <Link href={`/approvals/${waits.note.ask}`} title={waits.note.text}>
              <State tone="wait">waits for approval</State>
            </Link>
          )}
          {told === null && (
            <>
              <span class="grow" />
              <Copied what="Link" text={() => location.href} />
              <Link class="btn" href={`/compare?a=${encodeURIComponent(data.run.run)}`}>
                Compare…
              </Link>
              <a class="btn" href={`/api/export/${encodeURIComponent(data.run.run)}`} download>
                Export HTML
              </a>
              {data.jaeger && (
                <a class="btn" href={data.jaeger} target="_blank" rel="noreferrer">
                  Jaeger ↗
                </a>
              )}
              {top &&
                actsOf(top).map((op) => (
                <button key={op} type="button" class="btn" onClick={() => setAsking({ op, row: top })}>
                  {WORDS[op].button}
                </button>
              ))}
            </>
          )}
        </div>
        <div class="facts">
          {data.facts.map(([label, text]) => (
            <span key={label}>
              {label} <span class="fig">{text}</span>
            </span>
          ))}
          <Ids ids={data.ids} />
        </div>
      </div>
      {limits.length > 0 && (
        <div class="runlimits">
          {limits.map((bar) => (
            <span key={bar.title} class="limit" data-tone={bar.tone}>
              <span class="kind cut" title={bar.title}>
                {bar.title}
              </span>
              <Meter bar={bar} />
              <span class="what cut" title={[bar.text, bar.since].filter(Boolean).join(", ")}>
                {bar.text}
                {bar.refused > 0 && `, ${bar.refused} refused`}
                {bar.since && `, ${bar.since}`}
              </span>
              <Share bar={bar} />
            </span>
          ))}
        </div>
      )}
      <div class="runbody">
        <div ref={scroller} class="trace" role="region" aria-label="Tree and waterfall" tabIndex={0}>
          <div class="sticky">
            {data.curves.length > 0 && <Curves curves={data.curves} length={data.length} ticks={ticks} />}
            <div class="treehead">
              <span>Agents, calls, tools</span>
              <span class="n">in → out</span>
              <span class="n">Cost</span>
            </div>
            <Axis ticks={ticks} />
          </div>
          <div role="treegrid" aria-label="Calls" aria-rowcount={lines.length} class="spans" style={{ height: `${virtual.height}px` }}>
            {!isPhone && <Ticks ticks={ticks} />}
            {virtual.items.map((item) => {
              const line = lines[item.index];
              if (!line) return null;
              const [id, depth] = line.row;
              return (
                <div
                  key={`${item.index}/${id}`}
                  class={`span ${line.row[2]} is-${line.row[4]}`}
                  role="row"
                  aria-level={depth + 1}
                  aria-rowindex={item.index + 1}
                  aria-selected={item.index === at}
                  aria-expanded={line.folds ? isOpen(id) : undefined}
                  onClick={() => choose(item.index)}
                  style={{ top: `${item.start - above}px` }}
                >
                  <Left line={line} guide={guideOf(depth, guides[item.index] ?? 0)} open={isOpen(id)} onFold={() => fold(id, isOpen(id))} />
                  {!isPhone && (line.turns ? <Turns turns={line.turns} length={data.length} /> : <Lane row={line.row} length={data.length} />)}
                </div>
              );
            })}
          </div>
          {data.left_out > 0 && (
            <p class="failed dim" role="status">
              {isReading ? `${data.left_out.toLocaleString("en-US")} more lines are being read…` : `${data.left_out.toLocaleString("en-US")} more calls are kept than can be shown.`}
            </p>
          )}
        </div>
        <Item row={selected} notes={data.notes} onAsk={setAsking} />
      </div>
      {asking && <Steering asked={asking} onClose={() => setAsking(null)} />}
    </>
  );
}

function Copied({ what, text }: { what: string; text: () => string }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text());
    setDone(true);
    setTimeout(() => setDone(false), 2000);
  };
  return (
    <button type="button" class="btn" onClick={copy}>
      <Icon name="link" />
      <span aria-live="polite">{done ? "Copied" : what}</span>
    </button>
  );
}

const isCall = (row: TreeRow) => row[2] === "call" || row[2] === "tool";
const SHAPES: Record<string, string> = { call: "chat", tool: "tool", agent: "agent", run: "run" };

function Left({ line, guide, open, onFold }: { line: Line; guide: readonly boolean[]; open: boolean; onFold: () => void }) {
  const [, , kind, title, tone, , , given, taken, cost] = line.row;
  const isPlain = tone === "ok" || tone === "run";
  return (
    <span class="left" role="gridcell">
      <span class="node">
        <Steps guide={guide} />
        {line.folds ? (
          <button type="button" class="tw" tabIndex={-1} aria-label={`${open ? "Fold" : "Unfold"} ${title}`} onClick={(event) => (event.stopPropagation(), onFold())}>
            <Icon name={open ? "down" : "right"} />
          </button>
        ) : null}
        {kind !== "turns" && <Icon name={isPlain && kind !== "run" ? (SHAPES[kind] ?? "run") : tone} />}
        <span class="name" title={title}>
          {title}
        </span>
      </span>
      <span class="n">{taken ? `${given}→${taken}` : given}</span>
      <span class="n">{cost}</span>
    </span>
  );
}

/** The place of the turns, folded, in which an item is. */
function holding(rows: readonly TreeRow[], wanted: string | null): string[] {
  const at = wanted === null ? -1 : rows.findIndex((row) => row[0] === wanted);
  let from = at;
  const depth = rows[at]?.[1];
  while (from > 0 && rows[from - 1]?.[1] === depth && isCall(rows[from - 1] as TreeRow) && rows[from - 1]?.[4] === "ok") from--;
  const first = at < 0 ? undefined : rows[from + FIRST];
  return first ? [first[0]] : [];
}

const MOST_BARS = 240;

/** The time of many turns: each call of them, or as many as can be told apart. */
function Turns({ turns, length }: { turns: readonly TreeRow[]; length: number }) {
  const every = Math.ceil(turns.length / MOST_BARS);
  return (
    <span class="lane" role="gridcell">
      {turns
        .filter((_, at) => at % every === 0)
        .map(([id, , kind, , , begin, took]) => (
          <i key={id} class={`b ${kind === "tool" ? "tool" : "chat"}`} style={{ left: `${(begin / length) * 100}%`, width: `${((took ?? 0) / length) * 100}%` }} />
        ))}
    </span>
  );
}

/** One line's time: a model call solid, a tool outlined, a scope thin, what is under way open to the right, a refusal a square. */
function Lane({ row, length }: { row: TreeRow; length: number }) {
  const [, , kind, , tone, begin, took, , , , remark, waits] = row;
  const left = (begin / length) * 100;
  const width = ((took ?? length - begin) / length) * 100;
  const isScope = !isCall(row);
  const onLeft = left > 50;
  if (tone === "wait" && kind === "tool")
    return (
      <span class="lane" role="gridcell" aria-label={remark}>
        {left > 30 && (
          <span class="t wait" style={{ right: `calc(${100 - left}% + 12px)` }}>
            {remark}
          </span>
        )}
        <i class="b waits" style={{ left: `min(${left}%, calc(100% - 6px))`, width: `max(${width}%, 6px)` }} />
      </span>
    );
  return (
    <span class="lane" role="gridcell" aria-label={remark || undefined}>
      {tone === "refused" && !isScope ? (
        <>
          <svg class="i at" viewBox="0 0 12 12" aria-hidden="true" style={{ left: `${left}%` }}>
            <rect x="1.5" y="1.5" width="9" height="9" />
          </svg>
          <span class={onLeft ? "t refused onleft" : "t refused"} style={{ left: `calc(${left}% ${onLeft ? "- 10px" : "+ 12px"})`, maxWidth: `calc(${onLeft ? left : 100 - left}% - 20px)` }}>
            {remark}
          </span>
        </>
      ) : (
        <>
          <i class={`b ${isScope ? "scope" : kind === "tool" ? "tool" : "chat"}${took === null ? " live" : ""}`} style={{ left: `${left}%`, width: `${width}%` }} />
          {waits.map(([from, long]) => (
            <i key={from} class="b waits" title="waited for a person" style={{ left: `${(from / length) * 100}%`, width: `${(long / length) * 100}%` }} />
          ))}
        </>
      )}
    </span>
  );
}

function Axis({ ticks }: { ticks: readonly (readonly [number, string])[] }) {
  return (
    <div class="axis" aria-hidden="true">
      {ticks.map(([share, text]) => (
        <span key={share} style={{ left: `${share}%` }}>
          {text}
        </span>
      ))}
    </div>
  );
}

/** The axis' lines, behind all lanes. */
function Ticks({ ticks }: { ticks: readonly (readonly [number, string])[] }) {
  return (
    <div class="ticks" aria-hidden="true">
      {ticks.slice(1).map(([share]) => (
        <i key={share} style={{ left: `${share}%` }} />
      ))}
    </div>
  );
}
