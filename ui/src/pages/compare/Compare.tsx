import { Link, useLocation } from "wouter-preact";
import type { Runs } from "../../api.ts";
import { useGet, useSearch } from "../../hooks.ts";
import { Failed } from "../../parts/Empty.tsx";
import { Page } from "../../parts/Frame.tsx";
import type { components } from "../../schema.d.ts";
import { moment, quoted, visible } from "../../words.ts";
import "../../parts/Table.css";

type Comparison = components["schemas"]["Comparison"];
type Row = components["schemas"]["RunRow"];

/** What the rows are called here that are named for programs. */
const WORDS: Readonly<Record<string, string>> = { duration: "took, s", input_tokens: "input tokens", output_tokens: "output tokens", tool_calls: "tool calls" };

/** Two runs side by side: what they used, and by which agent and model. */
export function ComparePage() {
  const search = useSearch();
  const [, go] = useLocation();
  const asked = new URLSearchParams(search);
  const [a, b] = [asked.get("a") ?? "", asked.get("b") ?? ""];
  const runs = useGet<Runs>("/api/runs");
  const { data, error } = useGet<Comparison>(a && b ? `/api/compare?a=${encodeURIComponent(a)}&b=${encodeURIComponent(b)}` : null);
  const rows = runs.data?.page.rows ?? [];
  const name = rows.find((row) => row.run === a)?.name;
  const isLike = (row: Row): boolean => row.name === name;
  const pick = (name: string, value: string) => {
    asked.set(name, value);
    go(`/compare?${asked}`, { replace: true });
  };
  return (
    <Page name="Compare" looks="two runs of the store" cli={`ravi-otel diff ${quoted(a || "RUN")} ${quoted(b || "RUN")}`}>
      <div class="head">
        <h1>Compare</h1>
        <Pick label="This run" value={a} rows={rows} onPick={(value) => pick("a", value)} />
        <Pick label="with that run" value={b} rows={[...rows.filter(isLike), ...rows.filter((row) => !isLike(row))]} onPick={(value) => pick("b", value)} />
      </div>
      {(error ?? runs.error) !== null && <Failed error={error ?? runs.error ?? ""} />}
      {data && (
        <div class="scroll" tabIndex={0} role="region" aria-label="Two runs">
          <table class="table narrow">
            <thead>
              <tr>
                <th>What</th>
                {[data.a, data.b].map((run, at) => (
                  <th key={at} class="n">
                    <Link href={`/runs/${encodeURIComponent(run.run)}`}>{`${visible(run.name ?? run.run)}, ${moment(run.began / 1e9)}`}</Link>
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {data.rows.map((row) => (
                <tr key={row.what}>
                  <td title={row.what}>{WORDS[row.what] ?? row.what}</td>
                  <td class="n">{row.a_text}</td>
                  <td class="n">{row.a_text === row.b_text ? <span class="dim">{row.b_text}</span> : <b>{row.b_text}</b>}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {!(a && b) && <p class="failed dim">Choose two runs.</p>}
    </Page>
  );
}

function Pick({ label, value, rows, onPick }: { label: string; value: string; rows: readonly Row[]; onPick: (value: string) => void }) {
  return (
    <label class="soft">
      {label}{" "}
      <select class="pick-run" value={value} onChange={(event) => onPick(event.currentTarget.value)}>
        {!rows.some((row) => row.run === value) && <option value={value}>{value || "…"}</option>}
        {rows.map((row) => (
          <option key={row.run} value={row.run}>
            {visible(row.name ?? row.run)}, {moment(row.began / 1e9)}
          </option>
        ))}
      </select>
    </label>
  );
}
