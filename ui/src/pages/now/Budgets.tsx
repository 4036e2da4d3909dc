import { useState } from "preact/hooks";
import type { components } from "../../schema.d.ts";
import { post } from "../../api.ts";
import { useGet, useSeconds } from "../../hooks.ts";
import { Confirm } from "../../parts/Confirm.tsx";
import { Failed } from "../../parts/Empty.tsx";
import { Meter, Share } from "../../parts/LimitBar.tsx";
import { useTried, Would } from "../../parts/Trying.tsx";

type Known = components["schemas"]["Budgets"];
type Budget = components["schemas"]["Budget"];
const EVERY_S = 2;

/** The budgets that programs share in a ledger, on all machines: what is used of each, and set or closed for all of them. */
export function Budgets() {
  const turn = Math.floor(useSeconds() / EVERY_S);
  const { data, again } = useGet<Known>("/api/budgets", turn);
  const [asking, setAsking] = useState<{ budget: Budget; closing: boolean } | null>(null);
  if (data === null || (data.where === null && data.error === null)) return null;
  return (
    <section class="budgets" aria-labelledby="shared">
      <div class="bandhead">
        <h2 id="shared">Shared budgets</h2>
        <span class="dim cut" title={data.where ?? ""}>
          all machines{data.where && `, ${data.where}`}
        </span>
      </div>
      {data.error !== null && <Failed error={data.error} />}
      {data.error === null && data.budgets.length === 0 && <p class="failed dim">No program has counted in it yet.</p>}
      <ul>
        {data.budgets.map((budget) => (
          <li key={budget.id} class="limit" data-tone={budget.bar.tone}>
            <span class="name cut" title={budget.bar.title}>
              {budget.bar.title}
            </span>
            <span class="fig">
              {budget.bar.text}
              {budget.bar.refused > 0 && `, ${budget.bar.refused.toLocaleString("en-US")} refused`}
            </span>
            <Meter bar={budget.bar} />
            <Share bar={budget.bar} />
            <span class="set">
              {budget.state && <span class="dim">{budget.state}</span>}
              <button type="button" class="btn" aria-label={`Set ${budget.bar.title}`} onClick={() => setAsking({ budget, closing: false })}>
                Set…
              </button>
              {budget.state !== "closed" && (
                <button type="button" class="btn" aria-label={`Close ${budget.bar.title}`} onClick={() => setAsking({ budget, closing: true })}>
                  Close…
                </button>
              )}
            </span>
          </li>
        ))}
      </ul>
      {data.more > 0 && <p class="failed dim">{data.more.toLocaleString("en-US")} more: <code>ravi-otel ledger show</code></p>}
      {asking && <Change {...asking} onClose={() => (setAsking(null), again())} />}
    </section>
  );
}

function Change({ budget, closing, onClose }: { budget: Budget; closing: boolean; onClose: () => void }) {
  const { bar } = budget;
  const [value, setValue] = useState(bar.value);
  const { ready, pending, tried } = useTried(closing ? null : "/api/budgets/try", { id: budget.id, value }, bar.value);
  return (
    <Confirm
      title={closing ? `Close ${bar.title}?` : `Set ${bar.title}`}
      act={closing ? "Close it" : `Set it to ${value || "…"}`}
      leave={closing ? "Leave it open" : `Leave it at ${bar.value}`}
      ready={closing || ready}
      pending={pending}
      onAct={() => post("/api/budgets", closing ? { id: budget.id } : { id: budget.id, value })}
      onClose={onClose}
    >
      <div class="ask-bar">
        <Meter bar={bar} tall />
        <span class="fig">
          {bar.text} · {bar.share}
        </span>
      </div>
      {!closing && (
        <label class="ask-field">
          New value
          <input class="field" value={value} autoFocus onInput={(event) => setValue(event.currentTarget.value)} />
        </label>
      )}
      <Would tried={tried} />
      <p>
        {closing
          ? "Every program that counts in it, on every machine, is refused from its next call on. What is in flight is settled. Setting a higher limit opens it again."
          : "It counts for every program on every machine from its next call on. What is used stays used."}
      </p>
    </Confirm>
  );
}
