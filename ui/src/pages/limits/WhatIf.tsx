import type { components } from "../../schema.d.ts";
import { useEffect, useState } from "preact/hooks";
import { Link } from "wouter-preact";
import { useGet } from "../../hooks.ts";
import { Failed, Typed } from "../../parts/Empty.tsx";

type WhatIfs = components["schemas"]["WhatIf"];
const KINDS = ["cost", "tokens", "requests"] as const;
const UNITS: Record<string, string> = { cost: "USD a run", tokens: "tokens a run", requests: "calls a run" };

/** A limit tried on the runs that are kept: a picture of what each came to, and which would have been refused. */
export function WhatIf() {
  const [kind, setKind] = useState<string>("cost");
  const [typed, setTyped] = useState("");
  const [value, setValue] = useState("");
  const { data, error } = useGet<WhatIfs>(`/api/whatif?kind=${kind}&value=${encodeURIComponent(value)}`);
  useEffect(() => {
    const timer = setTimeout(() => setValue(typed.trim()), 150);
    return () => clearTimeout(timer);
  }, [typed]);
  const { runs = 0, unknown = 0, says = "", bins = [], ticks = [], at = null, spec = null, typical = [] } = data ?? {};
  if (runs === 0) return null;
  return (
    <section class="whatif" aria-labelledby="what-if">
      <div class="ask">
        <h2 id="what-if">What if</h2>
        <p class="soft">Set a limit on the runs that are kept, and see which would have been refused. Nothing changes until you write it down.</p>
        <div class="tried">
          <select class="field" aria-label="Limit" value={kind} onChange={(event) => setKind(event.currentTarget.value)}>
            {KINDS.map((each) => (
              <option key={each} value={each}>
                {each}
              </option>
            ))}
          </select>
          <input class="field" aria-label="Value" inputMode="decimal" placeholder="of" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
          <span class="dim">{UNITS[kind]}</span>
        </div>
        {error !== null ? <Failed error={error} /> : says && <p aria-live="polite">{says}.</p>}
        {error === null && spec && <Typed line={spec} />}
        {unknown > 0 && <p class="dim">{unknown.toLocaleString("en-US")} runs are left out: what they came to is not known.</p>}
      </div>
      <div class="pic">
        <p class="soft">
          {runs.toLocaleString("en-US")} {runs === 1 ? "run" : "runs"} of the last 30 days, by what each came to. <Link href="/runs?since=30d">See them</Link>
        </p>
        <div class="hist" role="img" aria-label={typical.map(([name, text]) => `${name} came to at most ${text}`).join(", ")}>
          {bins.map(([height, past], place) => (
            <i key={place} class={past ? "h-out" : "h-in"} style={{ left: `${(place / bins.length) * 100}%`, width: `${90 / bins.length}%`, height: `${height}%` }} />
          ))}
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
        </p>
      </div>
    </section>
  );
}
