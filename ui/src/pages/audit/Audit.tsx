import { useState } from "preact/hooks";
import { Link, useLocation } from "wouter-preact";
import type { Audit, AuditEntry } from "../../api.ts";
import { useGet, useKeys, useSearch } from "../../hooks.ts";
import { Empty, Failed } from "../../parts/Empty.tsx";
import { Filters } from "../../parts/Filters.tsx";
import { type Key, Page } from "../../parts/Frame.tsx";
import { State } from "../../parts/Icon.tsx";
import { many, moment } from "../../words.ts";
import "../../parts/Table.css";
import "./audit.css";

const KEYS: readonly Key[] = [
  { keys: ["j", "k"], does: "move" },
  { keys: ["↵"], does: "open" },
  { keys: ["/"], does: "search" },
];

export function AuditPage() {
  const search = useSearch();
  const [, go] = useLocation();
  const { data, error, again } = useGet<Audit>(`/api/audit${search && `?${search}`}`);
  const [at, setAt] = useState(0);
  const [opened, setOpened] = useState<string | null>(null);
  const open = (entry: AuditEntry | undefined) => entry && setOpened(opened === keyOf(entry) ? null : keyOf(entry));
  const found = data?.found ?? [];
  const move = (step: number) => {
    const next = Math.max(0, Math.min(found.length - 1, at + step));
    setAt(next);
    document.getElementById(`entry-${next}`)?.scrollIntoView({ block: "nearest" });
  };
  useKeys({ j: () => move(1), k: () => move(-1), ArrowDown: () => move(1), ArrowUp: () => move(-1), Enter: () => open(found[at]), Escape: () => setOpened(null) });
  const fine = data ? data.files - data.broken.length : 0;
  const kinds = data
    ? ([
        ["run", data.runs],
        ["tool", data.tools],
        ["person", data.people],
        ["what", data.whats],
      ] as const)
    : [];
  return (
    <Page name="Audit" looks={data ? `${data.where}, ${many(data.files, "file")}` : "the audit logs"} cli="ravi-otel audit verify audit" keys={KEYS}>
      <div class="head">
        <h1>Audit</h1>
        {data && data.files > 0 && (
          <p class="say">
            <span>
              {data.entries.toLocaleString("en-US")} {data.entries === 1 ? "entry" : "entries"} in {many(data.files, "file")}, verified{" "}
              <span class="fig">{data.verified_at}</span>
            </span>{" "}
            {fine > 0 && <State tone="ok">{fine.toLocaleString("en-US")} as written</State>}{" "}
            {data.broken.length > 0 && <State tone="refused">{data.broken.length.toLocaleString("en-US")} changed</State>}
          </p>
        )}
        <div class="acts">
          <button type="button" class="btn" onClick={again}>
            Verify again
          </button>
        </div>
      </div>
      {error !== null && <Failed error={error} />}
      {data && data.files === 0 && (
        <Empty ways={[["Have the gate write down what is asked, decided and done", 'Gate(policy, tools=[...], audit=AuditLog("audit"))']]}>
          <p>
            There is no audit log in <code>{data.where}</code>. Another directory is named with <code>ravi-otel ui --audit DIR</code>.
          </p>
        </Empty>
      )}
      {data && data.files > 0 && (
        <>
          <Filters path="/audit" search={search} kinds={kinds} placeholder="Search arguments and notes" onGo={(to) => go(to, { replace: true })} />
          {data.broken.map((file) => (
            <div key={file.name} class="broken" role="alert">
              <State tone="refused">
                <b>
                  {file.name}
                  {file.line !== null && `, entry ${file.line}`}
                </b>{" "}
                is not as it was written.
              </State>
              <span class="grow">{file.problems.join(" ")}</span>
            </div>
          ))}
          <div class="scroll" tabIndex={0} role="region" aria-label="Entries">
            <table class="table audit stacks" role="table">
              <colgroup>
                <col class="a-when" />
                <col class="a-run" />
                <col class="a-tool" />
                <col class="a-what" />
                <col />
                <col class="a-who" />
                <col class="a-hash" />
              </colgroup>
              <thead role="rowgroup">
                <tr role="row">
                  <th role="columnheader" class="sorted" aria-sort="descending">
                    When ↓
                  </th>
                  <th role="columnheader">Run</th>
                  <th role="columnheader">Tool</th>
                  <th role="columnheader">What</th>
                  <th role="columnheader">With</th>
                  <th role="columnheader">Who</th>
                  <th role="columnheader">Hash, linked</th>
                </tr>
              </thead>
              <tbody role="rowgroup">
                {found.map((entry, row) => (
                  <Entry
                    key={keyOf(entry)}
                    id={`entry-${row}`}
                    entry={entry}
                    name={data.names?.[entry.run]}
                    above={found[row - 1]}
                    below={found[row + 1]}
                    selected={row === at}
                    opened={opened === keyOf(entry)}
                    onChoose={() => {
                      setAt(row);
                      open(entry);
                    }}
                  />
                ))}
              </tbody>
            </table>
          </div>
          {found.length === 0 && <p class="failed dim">No entry fits. Take out a filter.</p>}
          {data.more > 0 && <p class="failed dim">{data.more.toLocaleString("en-US")} older entries fit, too: narrow it down.</p>}
        </>
      )}
    </Page>
  );
}

const keyOf = (entry: AuditEntry): string => `${entry.file}:${entry.number}`;

/** `8d630df8` for an id that nobody reads whole, else the name as it is. */
const short = (run: string): string => (/^[0-9a-f]{32}$/.test(run) ? run.slice(0, 8) : run);

interface EntryProps {
  id: string;
  entry: AuditEntry;
  name: string | undefined;
  above: AuditEntry | undefined;
  below: AuditEntry | undefined;
  selected: boolean;
  opened: boolean;
  onChoose: () => void;
}

/** One entry. Its ring is tied to the entry that it follows from, where that one stands next to it; runs are never tied to each other. */
function Entry({ id, entry, name, above, below, selected, opened, onChoose }: EntryProps) {
  const up = above?.file === entry.file && above.number === entry.number + 1;
  const down = below?.file === entry.file && below.number === entry.number - 1;
  const start = above?.file !== entry.file;
  const tied = `kc${up ? " up" : ""}${down ? " down" : ""}${up && above?.fits === false ? " torn-up" : ""}${down && entry.fits === false ? " torn-down" : ""}`;
  return (
    <>
    <tr id={id} role="row" class={start ? "start" : ""} aria-selected={selected} onClick={onChoose}>
      <td role="cell" class="n left e-when">{moment(entry.at)}</td>
      <td role="cell" class="e-run" title={entry.run}>
        {!start ? "" : name === undefined ? short(entry.run) : <Link href={`/runs/${encodeURIComponent(entry.run)}`} onClick={(event: Event) => event.stopPropagation()}>{name}</Link>}
      </td>
      <td role="cell" class="mono e-tool" title={entry.tool}>
        {entry.tool}
      </td>
      <td role="cell" class="e-what">
        <State tone={entry.tone}>{entry.what}</State>
      </td>
      <td role="cell" class={entry.fits === false ? "with refused-words" : "with"} title={entry.says}>
        <button type="button" class="says" aria-expanded={opened}>
          {entry.says || "open it"}
        </button>
      </td>
      <td role="cell" class={entry.person ? "e-who" : "e-who soft"} title={entry.who}>
        {entry.person ? <b>{entry.who}</b> : entry.who}
      </td>
      <td role="cell" class={tied}>
        <span class={entry.fits ? "knot hash" : entry.fits === null ? "knot after hash" : "knot bad hash"} title={entry.hash}>
          {entry.hash.slice(0, 8)}
        </span>
      </td>
    </tr>
    {opened && (
      <tr role="row" class="opened">
        <td role="cell" colSpan={7}>
          <dl aria-label={`Entry ${entry.number} of ${entry.file}`}>
            {entry.fields.map(([field, value]) => (
              <div key={field}>
                <dt>{field}</dt>
                <dd class="mono">{field === "at" ? `${moment(entry.at)} (${value})` : value}</dd>
              </div>
            ))}
          </dl>
        </td>
      </tr>
    )}
    </>
  );
}
