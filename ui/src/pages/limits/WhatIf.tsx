import type { components } from "../../schema.d.ts";
import { useEffect, useState } from "preact/hooks";
import { Link } from "wouter-preact";
import { useGet } from "../../hooks.ts";
import { Failed, Typed } from "../../parts/Empty.tsx";

type WhatIfs = components["schemas"]["WhatIf"];
const KINDS = ["cost", "tokens", "requests", "turns"] as const;
const UNITS: Record<string, string> = { cost: "USD", tokens: "tokens", requests: "calls", turns: "turns" };

/** A limit tried on the runs that are kept: a picture of what each came to, and which would have been refused. */
export function WhatIf() {
  const [kind, setKind] = useState<string>("cost");
  const [agent, setAgent] = useState("");
  const [typed, setTyped] = useState("");
  const [value, setValue] = useState("");
  const asked = new URLSearchParams({ kind, value, agent });
  const { data, error } = useGet<WhatIfs>(`/api/whatif?${asked}`);
  useEffect(() => {
    const timer = setTimeout(() => setValue(typed.trim()), 150);
    return () => clearTimeout(timer);
  }, [typed]);
  const { runs = 0, unknown = 0, says = "", bins = [], ticks = [], at = null, now = null } = data ?? {};
  const { spec = null, suggested = null, typical = [], agents = [], most = 0, step = 1 } = data ?? {};
  const nowAt = now?.[0] ?? null;
  if (runs === 0 && agent === "") return null;
  const things = agent === "" ? (runs === 1 ? "run" : "runs") : `times that ${agent} worked`;
  const change = (set: (to: string) => void) => (event: Event & { currentTarget: HTMLSelectElement }) => {
    set(event.currentTarget.value);
    setTyped("");
    setValue("");
  };
  return (
    <section class="whatif" aria-labelledby="what-if">
      <div class="ask">
        <h2 id="what-if">What if</h2>
        <p class="soft">Set a limit on the runs that are kept, and see which calls it would have refused. Nothing changes until you write it down.</p>
        <div class="tried">
          <select class="field" aria-label="Of what" value={agent} onChange={change(setAgent)}>
            <option value="">run</option>
            {agents.map(([name, shown]) => (
              <option key={name} value={name}>
                agent {shown}
              </option>
            ))}
          </select>
          <select class="field" aria-label="Limit" value={kind} onChange={change(setKind)}>
            {KINDS.map((each) => (
              <option key={each} value={each}>
                {each}
              </option>
            ))}
          </select>
          <input class="field" aria-label="Value" inputMode="decimal" placeholder="of" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
          <span class="dim">
            {UNITS[kind]}
            {now && `, the latest limit is ${now[1]}`}
          </span>
        </div>
        <input
          class="slide"
          type="range"
          aria-label="Value, by sliding"
          min={0}
          max={most}
          step={step}
          value={Number.parseFloat(value) || 0}
          onInput={(event) => setTyped(String(Number(event.currentTarget.valueAsNumber.toPrecision(3))))}
        />
        {error !== null ? <Failed error={error} /> : says && <p aria-live="polite">{says}{at === null && " It lies beyond what is drawn: no run came near it."}</p>}
        {error === null && spec && <Typed line={spec} />}
        {unknown > 0 && <p class="dim">{unknown.toLocaleString("en-US")} {unknown === 1 ? "is" : "are"} left out: what {unknown === 1 ? "it" : "they"} came to is not known.</p>}
      </div>
      <div class="pic">
        <p class="soft">
          {runs.toLocaleString("en-US")} {things} of the last 30 days, by what each came to.{" "}
          <Link href={`/runs?since=30d&order=${kind === "turns" ? "requests" : kind}${agent && `&agent=${encodeURIComponent(agent)}`}`}>See them, the fullest first</Link>
        </p>
        <div class="hist" role="img" aria-label={typical.map(([name, text]) => `${name} came to at most ${text}`).join(", ")}>
          {bins.map(
            ([height, past], place) =>
              height > 0 && (
                <i key={place} class={past ? "h-out" : "h-in"} style={{ left: `${(place / bins.length) * 100}%`, width: `${90 / bins.length}%`, height: `${height}%` }} />
              ),
          )}
          {nowAt !== null && (
            <>
              <i class="now-at" style={{ left: `${nowAt}%` }} />
              <span class={nowAt > 80 ? "said onleft" : "said"} style={{ left: `${nowAt}%` }}>
                latest limit {now?.[1]}
              </span>
            </>
          )}
          {at !== null && <i class="cut-at" style={{ left: `${at}%` }} />}
          {ticks.map(([share, text]) => (
            <span key={share} class="x" style={{ left: `${share}%` }}>
              {text}
            </span>
          ))}
        </div>
        <p class="dim typical">
          {typical.map(([name, text]) => (
            <span key={name}>
              {name} came to at most <span class="fig">{text}</span>
            </span>
          ))}
          {suggested && (
            <span>
              <code>ravi-otel suggest</code> would write <span class="fig">{suggested}</span>
            </span>
          )}
        </p>
      </div>
    </section>
  );
}
