import { Fragment } from "preact";
import { useMemo, useState } from "preact/hooks";
import { Link, useLocation } from "wouter-preact";
import { type Bar, type Now, type NowRow, session } from "../../api.ts";
import { useKeys, useSeconds } from "../../hooks.ts";
import { now } from "../../live.ts";
import { Empty } from "../../parts/Empty.tsx";
import { type Key, Page } from "../../parts/Frame.tsx";
import { Icon, Says, State } from "../../parts/Icon.tsx";
import { LimitBar, Meter } from "../../parts/LimitBar.tsx";
import { Steps, Twist } from "../../parts/Tree.tsx";
import { span } from "../../words.ts";
import { Budgets } from "./Budgets.tsx";
import { actsOf, type Asked, Steering, WORDS } from "./Steering.tsx";
import "../../parts/Table.css";
import "./now.css";

const KEYS: readonly Key[] = [
  { keys: ["j", "k"], does: "move" },
  { keys: ["←", "→"], does: "fold" },
  { keys: ["↵"], does: "open" },
  { keys: ["p"], does: "pause" },
  { keys: ["l"], does: "limit" },
  { keys: ["x"], does: "cancel" },
];

/** The rows that are shown: not those below a folded one, nor processes that say nothing but what they run. */
function shown(all: readonly NowRow[], folded: ReadonlySet<string>, onlyMine: boolean): NowRow[] {
  const hidden = new Set<string>();
  const mine = new Set<string>();
  const above = new Map(all.map((row) => [row.key, row.parent]));
  if (onlyMine)
    for (const row of all)
      if (row.note?.ask || row.tone === "wait") for (let key: string | null | undefined = row.key; key; key = above.get(key)) mine.add(key);
  return all.filter((row) => {
    if (onlyMine && !mine.has(row.key)) return false;
    if (row.parent !== null && (hidden.has(row.parent) || folded.has(row.parent))) {
      hidden.add(row.key);
      return false;
    }
    return row.kind !== "process" || row.word !== "";
  });
}

const runPath = (run: string, call?: string | null): string => `/runs/${encodeURIComponent(run)}${call ? `?item=${encodeURIComponent(call)}` : ""}`;

/** The place of the last row of the group that a row is in: the run at its top, with all below. */
function lastOfGroup(rows: readonly NowRow[], at: number): number {
  const next = rows.findIndex((row, place) => place > at && row.guide.length <= 1);
  return next < 0 ? rows.length - 1 : next - 1;
}

export function NowPage() {
  const known = now.value;
  return (
    <Page name="Now" looks="every program of the store" cli="ravi-otel top" keys={KEYS}>
      {known === null ? <Waiting /> : <Board known={known} />}
    </Page>
  );
}

function Waiting() {
  return (
    <div class="head">
      <h1>Now</h1>
      <p class="say">Looking…</p>
    </div>
  );
}

const EMPTY = [
  ["A program that was not written for it", "ravi-otel run --limit cost=0.50usd --limit time=90s -- python my_agent.py"],
  ["Your own program: one line, and where to keep its runs", "ravi_otel.instrument()   # and RAVI_STORE=.ravi in its environment"],
  ["Nothing of your own yet: the support desk, on a scripted model, without a key", "ravi-otel demo --pace 1"],
] as const;

function Board({ known }: { known: Now }) {
  const [folded, setFolded] = useState<ReadonlySet<string>>(new Set());
  const [chosen, setChosen] = useState<string | null>(null);
  const [asking, setAsking] = useState<Asked | null>(null);
  const [, go] = useLocation();
  const [onlyMine, setOnlyMine] = useState(false);
  const rows = useMemo(() => shown(known.rows, folded, onlyMine), [known.rows, folded, onlyMine]);
  const parents = useMemo(() => new Set(known.rows.map((row) => row.parent)), [known.rows]);
  const selected = rows.find((row) => row.key === chosen) ?? rows[0];
  const at = selected ? rows.indexOf(selected) : -1;

  const last = lastOfGroup(rows, at);

  const move = (step: number) => {
    const next = rows[Math.max(0, Math.min(rows.length - 1, at + step))];
    if (!next) return;
    setChosen(next.key);
    document.getElementById(`row-${next.key}`)?.scrollIntoView({ block: "nearest" });
  };
  const fold = (key: string, on: boolean) => {
    setFolded((before) => {
      const after = new Set(before);
      if (on) after.add(key);
      else after.delete(key);
      return after;
    });
  };
  const ask = (op: Asked["op"]) => {
    if (selected && selected.can.includes(op)) setAsking({ op, row: selected });
  };
  useKeys({
    j: () => move(1),
    k: () => move(-1),
    ArrowDown: () => move(1),
    ArrowUp: () => move(-1),
    ArrowLeft: () => selected && fold(selected.key, true),
    ArrowRight: () => selected && fold(selected.key, false),
    Enter: () => {
      if (selected?.note?.ask) go(`/approvals/${selected.note.ask}`);
      else if (selected?.run) go(runPath(selected.run, selected.note?.call));
    },
    p: () => ask(selected?.can.includes("resume") ? "resume" : selected?.can.includes("stop") ? "stop" : "pause"),
    l: () => ask("set_limit"),
    x: () => ask(selected?.can.includes("close") ? "close" : "cancel"),
  });

  return (
    <>
      <div class="head">
        <h1>Now</h1>
        {known.rows.length === 0 ? <p class="say">Nothing runs.</p> : <Says says={known.says} />}
        {known.rows.length > 0 && (
          <div class="acts">
            <div class="seg" role="group" aria-label="Which runs">
              {["All", "Needs me"].map((name, place) => (
                <button key={name} type="button" aria-current={onlyMine === (place === 1) ? "true" : undefined} onClick={() => setOnlyMine(place === 1)}>
                  {name}
                </button>
              ))}
            </div>
          </div>
        )}
      </div>
      {onlyMine && rows.length === 0 && known.rows.length > 0 ? (
        <p class="failed dim">Nothing waits for you.</p>
      ) : rows.length === 0 ? (
        <Empty ways={EMPTY} after={<Anatomy />}>
          <p>A program shows up here while it runs, with each agent, what it spends and how full its limits are. Start one:</p>
        </Empty>
      ) : (
        <div class="now" role="treegrid" aria-label="What runs now">
          <div class="now-row now-head" role="row">
            {["Run, agents", "State", "Priority", "Calls", "tok/s", "Cost", "Fullest limit"].map((name, column) => (
              <span key={name} class={HEADS[column]} role="columnheader">
                {name}
              </span>
            ))}
          </div>
          {rows.map((row, place) => (
            <Fragment key={row.key}>
              <Line
                row={row}
                selected={row === selected}
                open={parents.has(row.key) ? !folded.has(row.key) : null}
                onChoose={() => setChosen(row.key)}
                onFold={() => fold(row.key, !folded.has(row.key))}
              />
              {selected && place === last && <Acts row={selected} onAsk={(op) => setAsking({ op, row: selected })} />}
            </Fragment>
          ))}
        </div>
      )}
      <div class="below">
        <Refusals known={known} />
        <Budgets />
      </div>
      {asking && <Steering asked={asking} onClose={() => setAsking(null)} />}
    </>
  );
}

/** How long a call waits for a person, and for how long yet. */
function AskedFor({ asked, expires }: { asked: number; expires: number | null }) {
  const at = useSeconds();
  return (
    <span class="soft asked">
      waits {span(at - asked)}
      {expires !== null && `, expires in ${span(expires - at)}`}
    </span>
  );
}

const SAMPLE: Bar = {
  kind: "cost",
  title: "An example",
  text: "$0.31 + $0.05 held of $0.50",
  share: "62 %",
  tone: "ok",
  used: 62,
  held: 10,
  warn: 80,
  value: "0.5",
  refused: 0,
  watched: false,
  spec: null, since: "",
};

/** What the parts of a bar are, and where programs are looked for. */
function Anatomy() {
  return (
    <>
      <section>
        <h2>How a limit will look</h2>
        <div class="anatomy">
          <span class="lab up used-lab">used $0.31</span>
          <span class="lab up held-lab">held $0.05 for calls on their way</span>
          <Meter bar={SAMPLE} />
          <span class="lab down warn-lab">warns at 80 %</span>
          <span class="lab down left-lab">left $0.14 of $0.50</span>
        </div>
      </section>
      <p class="dim">
        Looking in <code>{session.value?.store || ".ravi"}</code>, where nobody listens. A program with <code>RAVI_LIVE=off</code> is not seen here, only under{" "}
        <Link href="/runs">Runs</Link>.
      </p>
    </>
  );
}

const HEADS = ["c-name", "c-state", "c-prio w-wide", "c-calls n w-wide", "c-tok n w-wide", "c-cost n", "c-limit"];

interface LineProps {
  row: NowRow;
  selected: boolean;
  open: boolean | null;
  onChoose: () => void;
  onFold: () => void;
}

function Line({ row, selected, open, onChoose, onFold }: LineProps) {
  const [fullest] = row.bars;
  const top = row.kind === "run" || row.kind === "process";
  return (
    <>
      <div
        id={`row-${row.key}`}
        class={`now-row ${top ? "top-row" : ""} ${row.guide.length <= 1 ? "first" : ""}`}
        role="row"
        aria-level={Math.max(1, row.guide.length)}
        aria-selected={selected}
        aria-expanded={open ?? undefined}
        onClick={onChoose}
      >
        <span class="c-name" role="gridcell">
          <span class="node">
            <Steps guide={row.guide.slice(1)} />
            {open !== null && <Twist open={open} name={row.name} onClick={onFold} />}
            {row.kind === "run" && row.run ? (
              <Link class="name plain" title={row.name} href={runPath(row.run)}>
                {row.name}
              </Link>
            ) : (
              <span class="name" title={row.name}>
                {row.name}
              </span>
            )}
            {row.of && (
              <span class="dim cut of-prog" title={row.of}>
                {row.of}
              </span>
            )}
          </span>
        </span>
        <span class="c-state" role="gridcell">
          <State tone={row.tone} title={row.word}>
            {row.word}
          </State>
        </span>
        <span class="c-prio soft w-wide" role="gridcell">
          {row.priority}
        </span>
        <span class="c-calls n w-wide" role="gridcell">
          {row.calls}
        </span>
        <span class="c-tok n w-wide" role="gridcell">
          {row.rate}
        </span>
        <span class="c-cost n" role="gridcell">
          {row.cost}
        </span>
        <span class="c-limit" role="gridcell">
          {fullest ? <LimitBar bar={fullest} /> : row.kind !== "process" && <span class="dim no-limit">no limit</span>}
        </span>
      </div>
      {row.note && (
        <div class={`now-row note ${row.note.tone}`} role="row">
          <span class="c-note" role="gridcell">
            <span class="node">
              <Steps guide={row.guide.slice(1, -1)} />
              <span class="line grow">
                <Icon name={row.note.tone} class="shape" />
                {row.note.at && <span class="fig">{row.note.at}</span>}
                <span class={row.note.ask ? "cut grow mono" : "cut grow"} title={row.note.text}>
                  {row.note.text}
                </span>
                {row.note.asked_at != null && <AskedFor asked={row.note.asked_at} expires={row.note.expires_at ?? null} />}
                {row.note.ask && (
                  <Link class="btn" href={`/approvals/${row.note.ask}`} aria-label={`Look at ${row.note.text}`}>
                    Look
                  </Link>
                )}
                {row.note.call && row.run && (
                  <Link class="btn" href={runPath(row.run, row.note.call)} aria-label={`Open call that ${row.name} was refused`}>
                    Open call
                  </Link>
                )}
              </span>
            </span>
          </span>
        </div>
      )}
    </>
  );
}

/** What may be done to the selected row, below the group that it is in. */
function Acts({ row, onAsk }: { row: NowRow; onAsk: (op: Asked["op"]) => void }) {
  if (row.kind === "process") return null;
  return (
    <div class="now-row acts-row" role="row">
      <span class="c-acts" role="gridcell">
        {row.bars.slice(1).map((bar) => (
          <LimitBar key={bar.kind} bar={bar} />
        ))}
        {row.more_bars > 0 && <span class="dim">{row.more_bars} more limits under Limits</span>}
        <span class="set">
          {row.kind !== "run" && <span class="cut">{row.name}</span>}
          {actsOf(row).map((op) => (
            <button key={op} type="button" class="btn" onClick={() => onAsk(op)}>
              {WORDS[op].button}
            </button>
          ))}
          {row.facts.length > 0 && <span class="dim cut">{row.facts.join(" · ")}</span>}
        </span>
      </span>
    </div>
  );
}

function Refusals({ known }: { known: Now }) {
  if (known.refusals.length === 0) return null;
  return (
    <section class="refusals" aria-labelledby="refused-now">
      <div class="bandhead">
        <h2 id="refused-now">Refused just now</h2>
        <span class="dim">{known.refused}</span>
      </div>
      <ul>
        {known.refusals.map((each) => (
          <li key={each.call_id ?? `${each.run}/${each.agent}/${each.limit}`}>
            <span class="fig">{each.at}</span>
            <span class="cut" title={`${each.agent} → ${each.call}`}>
              {each.agent} <span class="dim">→ {each.call}</span>
            </span>
            <span class="pair">
              <State tone="refused" title={each.sentence}>
                {each.sentence}
              </State>
              {each.before && <span class="dim nowrap">{each.before}</span>}
            </span>
            <span class="cut" title={each.run_name}>
              {each.run ? <Link href={runPath(each.run, each.call_id)}>{each.run_name}</Link> : each.run_name}
            </span>
          </li>
        ))}
      </ul>
    </section>
  );
}
