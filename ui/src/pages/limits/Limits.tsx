import { useState } from "preact/hooks";
import { Link } from "wouter-preact";
import type { Limit, Limits } from "../../api.ts";
import { useGet, useKeys } from "../../hooks.ts";
import { now } from "../../live.ts";
import { Empty, Failed } from "../../parts/Empty.tsx";
import { type Key, Page } from "../../parts/Frame.tsx";
import { Says } from "../../parts/Icon.tsx";
import { Meter, Share } from "../../parts/LimitBar.tsx";
import { Budgets } from "../now/Budgets.tsx";
import { type Asked, Steering } from "../now/Steering.tsx";
import { WhatIf } from "./WhatIf.tsx";
import "../../parts/Table.css";
import "../now/now.css";
import "./limits.css";

const KEYS: readonly Key[] = [
  { keys: ["j", "k"], does: "move" },
  { keys: ["l"], does: "set" },
];

const ORDERS = [
  ["Fullest first", null],
  ["By scope", (each: Limit) => `${each.of || each.whose} ${each.whose}`],
  ["As written", (each: Limit) => each.written?.[1] ?? "~"],
] as const;

export function LimitsPage() {
  const { data, error } = useGet<Limits>("/api/limits", now.value);
  const [chosen, setChosen] = useState<string | null>(null);
  const [asking, setAsking] = useState<Asked | null>(null);
  const [by, setBy] = useState(0);
  const word = ORDERS[by]?.[1] ?? null;
  const known = data?.limits ?? [];
  const limits = word === null ? known : [...known].sort((a, b) => word(a).localeCompare(word(b), "en", { numeric: true }));
  const at = Math.max(0, limits.findIndex((each) => each.key === chosen));
  const set = (limit: Limit | undefined) => {
    if (!limit?.can.includes("set_limit")) return;
    const { process, scope, whose, bar } = limit;
    setAsking({ op: "set_limit", row: { kind: "", name: whose, bars: [bar], process, scope }, bar });
  };
  const move = (step: number) => {
    const next = limits[Math.max(0, Math.min(limits.length - 1, at + step))];
    if (!next) return;
    setChosen(next.key);
    document.getElementById(`limit-${next.key}`)?.scrollIntoView({ block: "nearest" });
  };
  useKeys({ j: () => move(1), k: () => move(-1), ArrowDown: () => move(1), ArrowUp: () => move(-1), l: () => set(limits[at]) });
  return (
    <Page name="Limits" looks="limits of what runs now" cli="ravi-otel top --once" keys={KEYS}>
      <div class="head">
        <h1>Limits</h1>
        {data && limits.length > 0 && (
          <>
            <Says says={data.says} />
            <div class="acts">
              <div class="seg" role="group" aria-label="In which order">
                {ORDERS.map(([name], place) => (
                  <button key={name} type="button" aria-current={place === by ? "true" : undefined} onClick={() => setBy(place)}>
                    {name}
                  </button>
                ))}
              </div>
            </div>
          </>
        )}
      </div>
      {error !== null && <Failed error={error} />}
      {data && limits.length === 0 && (
        <Empty ways={WAYS}>
          <p>A limit shows up here while the run, agent or block that it counts for is open. None is now. Set one:</p>
        </Empty>
      )}
      {limits.length > 0 && (
        <div class="scroll" tabIndex={0} role="region" aria-label="Limits that count now">
          <table class="table limits stacks" role="table">
            <colgroup>
              <col class="l-lim" />
              <col class="l-for" />
              <col />
              <col class="l-pct" />
              <col class="l-what" />
              <col class="l-src" />
              <col class="l-set" />
            </colgroup>
            <thead role="rowgroup">
              <tr role="row">
                <th role="columnheader">Limit</th>
                <th role="columnheader">Counts for</th>
                <th role="columnheader">Used, held and left</th>
                <th role="columnheader">
                  <span class="only-screenreader">Share</span>
                </th>
                <th role="columnheader">
                  <span class="only-screenreader">Amounts</span>
                </th>
                <th role="columnheader">Written in</th>
                <th role="columnheader">
                  <span class="only-screenreader">Set</span>
                </th>
              </tr>
            </thead>
            <tbody role="rowgroup">
              {limits.map((limit, row) => (
                <tr key={limit.key} role="row" id={`limit-${limit.key}`} aria-selected={row === at} onClick={() => setChosen(limit.key)}>
                  <td role="cell" class="l-spec mono" title={limit.bar.spec ?? limit.bar.title}>
                    {limit.bar.spec ?? limit.bar.title}
                  </td>
                  <td role="cell" class="l-whose" title={`${limit.whose}${limit.of && ` of ${limit.of}`}`}>
                    {limit.run === null ? limit.whose : <Link class="row" href={`/runs/${encodeURIComponent(limit.run)}`}>{limit.whose}</Link>} {limit.of && <span class="dim">of {limit.of}</span>}
                  </td>
                  <td role="cell" class="has-bar">
                    <Meter bar={limit.bar} />
                  </td>
                  <td role="cell" class="limit-share" data-tone={limit.bar.tone}>
                    <Share bar={limit.bar} />
                  </td>
                  <td role="cell" class="l-amount">
                    <span class="fig">{limit.bar.text}</span>
                    <span class="dim">
                      {limit.bar.refused > 0 && `  ${limit.bar.refused.toLocaleString("en-US")} refused`}
                      {limit.bar.watched && " only watches"}
                    </span>
                  </td>
                  <td role="cell" class="mono l-where" title={limit.written?.[1]}>
                    {limit.written?.[0] ?? <span class="dim">?</span>}
                    {limit.bar.since && <span class="dim"> {limit.bar.since}</span>}
                  </td>
                  <td role="cell" class="act">
                    {limit.can.includes("set_limit") && (
                      <button type="button" class="btn" onClick={() => set(limit)} aria-label={`Set ${limit.bar.title} of ${limit.whose}`}>
                        Set…
                      </button>
                    )}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <Budgets />
      <WhatIf />
      {asking && <Steering asked={asking} onClose={() => setAsking(null)} />}
    </Page>
  );
}

const WAYS = [
  ["For a program that was not written for it", "ravi-otel run --limit cost=0.50usd --limit tokens=500k -- python my_agent.py"],
  ["See what would count, and who said so", "ravi-otel limits --policy policy.yaml"],
] as const;
