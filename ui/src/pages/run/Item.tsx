import { useEffect, useState } from "preact/hooks";
import { Link } from "wouter-preact";
import { type Call, type NowRow, told, type TreeRow } from "../../api.ts";
import { useGet, useKeys } from "../../hooks.ts";
import { now } from "../../live.ts";
import { Conversation } from "../../parts/Conversation.tsx";
import { Failed } from "../../parts/Empty.tsx";
import { Icon, State } from "../../parts/Icon.tsx";
import { Meter } from "../../parts/LimitBar.tsx";
import { span } from "../../words.ts";
import { actsOf, type Asked, WORDS } from "../now/Steering.tsx";
import { Ids } from "./Ids.tsx";

type Notes = readonly (readonly [number, string, string])[];

/** A scope while it is open, by its id. */
const openScope = (id: string | null | undefined): NowRow | undefined => (told === null && id ? now.value?.rows.find((row) => row.scope === id) : undefined);

/** What the id of a call begins with that waits for a person: the rest is that of the request. */
export const ASKED = "ask/";

const TABS = ["Conversation", "Reservation", "Attributes", "JSON"] as const;

/** The open item: a call whole, or a scope's own line. */
export function Item({ row, notes, onAsk }: { row: TreeRow | undefined; notes: Notes; onAsk: (asked: Asked) => void }) {
  const isCall = row?.[2] === "call" || row?.[2] === "tool";
  return (
    <aside class="item" aria-label="The open item" tabIndex={0}>
      {row === undefined ? null : row[0].startsWith(ASKED) ? <AskedItem row={row} /> : isCall && row[0] ? <CallItem key={row[0]} id={row[0]} row={row} onAsk={onAsk} /> : <ScopeItem row={row} notes={notes} onAsk={onAsk} />}
    </aside>
  );
}

/** A call that waits for a person: what it would run, and where it is answered. */
function AskedItem({ row }: { row: TreeRow }) {
  return (
    <div class="title">
      <State tone="wait">{row[10]}</State>
      <p class="fig">{row[3]}</p>
      {told === null && (
        <p class="set">
          <Link class="btn" href={`/approvals/${row[0].slice(ASKED.length)}`}>
            Look
          </Link>
        </p>
      )}
    </div>
  );
}

function ScopeItem({ row, notes, onAsk }: { row: TreeRow; notes: Notes; onAsk: (asked: Asked) => void }) {
  const open = row[2] === "run" ? undefined : openScope(row[0]);
  const [, depth, kind, title, tone, , , given, taken, cost, remark] = row;
  return (
    <>
      <div class="title">
        <div class="l">
          <Icon name={tone} />
          <h2>{title}</h2>
          <span class="dim">{kind}</span>
        </div>
        <p class="facts">
          {cost && (
            <span>
              cost <span class="fig">{cost}</span>
            </span>
          )}
          {(given || taken) && (
            <span>
              tokens{" "}
              <span class="fig">
                {given} in, {taken} out
              </span>
            </span>
          )}
        </p>
        {remark && <p>{remark}</p>}
        {open && (
          <p class="set">
            {actsOf(open).map((op) => (
              <button key={op} type="button" class="btn" onClick={() => onAsk({ op, row: open })}>
                {WORDS[op].button}
              </button>
            ))}
          </p>
        )}
      </div>
      {depth === 0 && notes.length > 0 && (
        <div class="panel">
          <h2>Beside the calls</h2>
          <ul>
            {notes.map(([at, what, text], place) => (
              <li key={place} class="beside">
                <span class="fig dim">{span(at / 1000)}</span> <span class="dim">{what}</span> <span>{text}</span>
              </li>
            ))}
          </ul>
        </div>
      )}
    </>
  );
}

function CallItem({ id, row, onAsk }: { id: string; row: TreeRow; onAsk: (asked: Asked) => void }) {
  const { data, error } = useGet<Call>(`/api/calls/${encodeURIComponent(id)}`, row[6]);
  const [tab, setTab] = useState(0);
  const [copied, setCopied] = useState("");
  useEffect(() => {
    const timer = setTimeout(() => setCopied(""), 2000);
    return () => clearTimeout(timer);
  }, [copied]);
  useKeys({ "1": () => setTab(0), "2": () => setTab(1), "3": () => setTab(2), "4": () => setTab(3) });
  if (error !== null) return <Failed error={error} />;
  if (data === null) return null;
  const copy = async (what: string, text: string) => {
    await navigator.clipboard.writeText(text);
    setCopied(what);
  };
  const refused = data.chain.find((link) => link.refused);
  const open = openScope(refused?.id);
  const bar = open?.bars.find((each) => each.kind === refused?.bar.title);
  return (
    <>
      <div class="title">
        <div class="l">
          <State tone={data.tone}>{data.word}</State>
          <h2 class="cut" title={data.title}>
            {data.title}
          </h2>
          <span class="dim cut" title={data.agent}>
            {data.agent}
          </span>
          <span class="grow" />
          {data.curl !== null && (
            <button type="button" class="btn bare" aria-label="Copy it as curl" onClick={() => copy("curl", data.curl ?? "")}>
              curl
            </button>
          )}
          {data.jaeger !== null && (
            <a class="btn bare" href={data.jaeger} target="_blank" rel="noreferrer" aria-label="See its span in Jaeger">
              Jaeger ↗
            </a>
          )}
          <button type="button" class="btn bare icon" aria-label="Copy the link to it" onClick={() => copy("link", location.href)}>
            <Icon name="link" />
          </button>
          <button type="button" class="btn bare icon" aria-label="Copy it as JSON" onClick={() => copy("JSON", data.raw)}>
            <Icon name="copy" />
          </button>
          <span class="only-screenreader" aria-live="polite">
            {copied && `${copied} copied`}
          </span>
        </div>
        <p class="facts">
          {data.facts.map(([label, text]) => (
            <span key={label}>
              {label} <span class="fig">{text}</span>
            </span>
          ))}
          <Ids ids={data.ids} />
        </p>
      </div>
      {data.sentence !== null && (
        <div class="verdict">
          <p class="sentence">{data.sentence}</p>
          {(refused?.written || open) && (
            <p class="where">
              {refused?.written && (
                <span>
                  written <code title={refused.written[1]}>{refused.written[0]}</code>
                  {refused.bar.since && `, ${refused.bar.since}`}
                </span>
              )}
              <span class="grow" />
              {open?.can.includes("set_limit") && (
                <button type="button" class="btn" onClick={() => onAsk(bar ? { op: "set_limit", row: open, bar } : { op: "set_limit", row: open })}>
                  Set limit…
                </button>
              )}
            </p>
          )}
        </div>
      )}
      {data.chain.length > 0 && (
        <div class="chain">
          <p class="cap">Asked from the outside in</p>
          <ol>
            {data.chain.map((link, at) => (
              <li key={at} class={link.refused ? "full" : ""}>
                <span class={`dot st-${link.refused ? "refused" : "ok"}`}>
                  <Icon name={link.refused ? "refused" : "run"} />
                </span>
                <span class="scope">{link.scope}</span>
                <div>
                  <p class="who">
                    <span class="cut" title={[[link.name, link.written?.[1]].filter(Boolean).join(", written "), link.bar.since].filter(Boolean).join(", ")}>
                      {[link.name, link.bar.title].filter(Boolean).join(" · ")}
                      {link.refused && " · said no"}
                    </span>
                    <span class="fig">
                      {link.bar.text} · {link.bar.share}
                    </span>
                  </p>
                  <Meter bar={link.bar} />
                </div>
              </li>
            ))}
          </ol>
        </div>
      )}
      <div class="tabs" role="tablist" aria-label="The open item">
        {TABS.map((name, at) => (
          <button
            key={name}
            type="button"
            role="tab"
            id={`tab-${at}`}
            aria-controls="panel"
            aria-selected={tab === at}
            tabIndex={tab === at ? 0 : -1}
            onClick={() => setTab(at)}
            onKeyDown={(event) => {
              const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
              if (step === 0) return;
              const next = (at + step + TABS.length) % TABS.length;
              setTab(next);
              document.getElementById(`tab-${next}`)?.focus();
            }}
          >
            {name}
          </button>
        ))}
      </div>
      <div id="panel" class="panel" role="tabpanel" aria-labelledby={`tab-${tab}`} tabIndex={0}>
        {tab === 0 &&
          (data.captured ? (
            <Conversation messages={data.messages} />
          ) : (
            <p class="soft">
              What was said is not kept. <code>ravi-otel run --content</code> keeps it from the next run on.
            </p>
          ))}
        {tab === 1 && <Pairs pairs={data.reservation} />}
        {tab === 2 && <Pairs pairs={data.attributes} />}
        {tab === 3 && <pre class="raw">{data.raw}</pre>}
      </div>
    </>
  );
}

function Pairs({ pairs }: { pairs: readonly (readonly [string, string])[] }) {
  return (
    <dl class="kv">
      {pairs.map(([name, value]) => (
        <>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </>
      ))}
    </dl>
  );
}
