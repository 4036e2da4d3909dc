import { useEffect, useId, useState } from "preact/hooks";
import { Link } from "wouter-preact";
import { type Argument, type Asked, type Edited, post, sentence, session } from "../../api.ts";
import { useKeys, useMedia, useSeconds } from "../../hooks.ts";
import { now } from "../../live.ts";
import { Confirm } from "../../parts/Confirm.tsx";
import { Failed } from "../../parts/Empty.tsx";
import { Icon, State } from "../../parts/Icon.tsx";
import { LimitBar } from "../../parts/LimitBar.tsx";
import { moment, span } from "../../words.ts";
import { Ran, SoFar } from "./Around.tsx";
import { wrong } from "./form.ts";

type Drafts = Readonly<Record<string, string>>;

/** What the server made of a draft: only that may be approved, and what was typed since may not. */
type Checked = Edited & { draft: string };

/** The arguments as one JSON object, each draft in the place of what was asked; an empty draft leaves it out. */
function whole(asked: readonly Argument[], drafts: Drafts): string {
  const parts = asked.flatMap((each) => {
    const value = drafts[each.name] ?? each.value ?? "";
    return value.trim() === "" ? [] : [`"${each.name}": ${value}`];
  });
  return `{${parts.join(", ")}}`;
}

interface RequestProps {
  asked: Asked;
  path: string;
  /** Whether other pages may be opened from here. */
  linked?: boolean;
  onDone: () => void;
}

export function Request({ asked, path, linked = true, onDone }: RequestProps) {
  const { ask, earlier } = asked;
  const at = useSeconds();
  const [editing, setEditing] = useState(false);
  const [drafts, setDrafts] = useState<Drafts>({});
  const [edited, setEdited] = useState<Checked | null>(null);
  const [comment, setComment] = useState("");
  const [error, setError] = useState<string | null>(null);
  const [rejecting, setRejecting] = useState(false);
  const [busy, setBusy] = useState(false);
  const [copied, setCopied] = useState(false);
  const note = useId();
  const isNarrow = useMedia("(max-width: 1279px)") || !linked;
  const isPending = ask.tone === "wait";
  const isOpen = ask.can.includes("approve") && !session.value?.read_only;
  const mayReject = ask.can.includes("reject") && !session.value?.read_only;
  const changes = Object.keys(drafts).length > 0;
  const draft = changes ? whole(ask.arguments, drafts) : null;
  const flaws = new Map(ask.arguments.flatMap((each) => (each.name in drafts ? [[each.name, wrong(each, drafts[each.name] ?? "")] as const] : [])));
  const flaw = [...flaws.values()].find((each) => each !== null) ?? null;
  const checked = flaw === null && (draft === null || edited?.draft === draft);

  useEffect(() => {
    if (draft === null) {
      setEdited(null);
      setError(null);
      return;
    }
    if (flaw !== null) {
      setEdited(null);
      setError(null);
      return;
    }
    let wanted = true;
    const timer = setTimeout(() => {
      post<Edited>(`${path}/edit`, { arguments: draft }).then(
        (answer) => {
          if (!wanted) return;
          setEdited({ ...answer, draft });
          setError(null);
        },
        (failed: unknown) => {
          if (!wanted) return;
          setEdited(null);
          setError(sentence(failed));
        },
      );
    }, 150);
    return () => {
      wanted = false;
      clearTimeout(timer);
    };
  }, [draft, flaw, path]);

  const send = async (approved: boolean, why: string) => {
    const body = { seal: ask.seal, approved, takes_back: !isPending, comment: why, arguments: approved ? draft : null };
    await post<Asked>(path, body);
    onDone();
  };
  const approve = async () => {
    if (!isOpen || busy || !checked) return;
    setBusy(true);
    try {
      await send(true, comment);
    } catch (failed) {
      setError(sentence(failed));
      onDone();
    } finally {
      setBusy(false);
    }
  };
  const undo = () => {
    setDrafts({});
    setEditing(false);
  };
  useKeys({
    a: () => document.getElementById("approve")?.focus(),
    e: () => isOpen && setEditing(true),
    r: () => mayReject && setRejecting(true),
    Escape: undo,
  });

  const shown = edited?.arguments ?? ask.arguments;
  const changed = edited?.arguments.filter((each) => each.edited !== null) ?? [];
  const [only] = changed;
  const act = changed.length === 1 && only ? `Approve with ${only.edited === "" ? `no ${only.name}` : `${only.name} ${only.edited}`}` : changes ? "Approve the edit" : "Approve";
  return (
    <>
      <section class="ask-main" aria-label="The request">
        <div>
          <State tone={ask.tone}>
            {isPending
              ? `${ask.word} ${span(at - ask.asked_at)}${ask.expires_at === null ? ", never expires" : `, expires in ${span(ask.expires_at - at)}`}`
              : ask.word}
          </State>
          <p class="call">{ask.call}</p>
          <p class="soft">
            asked by <b>{ask.agent || "somebody"}</b>
            {ask.run && <> in {linked ? <Link href={`/runs/${encodeURIComponent(ask.run)}`}>{asked.so_far?.name ?? ask.run}</Link> : (asked.so_far?.name ?? ask.run)}</>}
            {ask.tenant && `, tenant ${ask.tenant}`}
            {ask.user && `, user ${ask.user}`}, at {moment(ask.asked_at)}
          </p>
          {ask.approvers && <p class="soft">may be approved by {ask.approvers}</p>}
        </div>
        <div>
          <h2>Why a person</h2>
          <p>
            <code>{ask.reason}</code>
            {ask.risk !== null && <>, risk {ask.risk}</>}
          </p>
        </div>
        <Ran asked={asked} />
        <div>
          <h2>{isPending ? "Exactly what will run" : ask.tone === "ok" ? "Exactly what was approved" : "What was asked for"}</h2>
          <table class="args">
            <thead>
              <tr>
                <th>Argument</th>
                <th>Value</th>
                <th>Type</th>
              </tr>
            </thead>
            <tbody>
              {shown.map((each) => (
                <Row
                  key={each.name}
                  argument={each}
                  editing={editing && isOpen}
                  draft={drafts[each.name]}
                  flaw={flaws.get(each.name) ?? null}
                  onDraft={(value) => setDrafts(drafted(drafts, each, value))}
                />
              ))}
            </tbody>
          </table>
          <p class="print">
            fingerprint <code class={edited ? "was dim" : ""}>{ask.fingerprint.slice(0, 12)}</code>
            {edited && <code> → {edited.fingerprint.slice(0, 12)}</code>} <span class="dim">SHA-256 over tool, arguments, scope and policy; an approval is for these alone, once</span>
          </p>
        </div>
        {isPending && <Leaves run={ask.run} />}
        {earlier.length > 0 && (
          <div>
            <h2>The same was asked before</h2>
            <ul>
              {earlier.map((each) => (
                <li key={each.id}>
                  <State tone={each.tone}>
                    {each.word}, {moment(each.answered_at ?? each.asked_at)}
                  </State>
                </li>
              ))}
            </ul>
          </div>
        )}
        {isNarrow && <SoFar asked={asked} linked={linked} />}
        {ask.says && <p class="soft">{ask.says}</p>}
        {ask.comment && (
          <p>
            <span class="dim">Note:</span> {ask.comment}
          </p>
        )}
        {isOpen && (
          <div>
            <label for={note} class="soft">
              Note for the audit log
            </label>
            <textarea id={note} class="field" maxLength={2000} placeholder="May be left empty; the model may be told" value={comment} onInput={(event) => setComment(event.currentTarget.value)} />
          </div>
        )}
        {error !== null && <Failed error={error} />}
        {mayReject && (
          <div class="decide">
            {isOpen && (
              <button id="approve" type="button" class="btn tall main-act" disabled={busy || !checked} onClick={approve} title={act}>
                <span class="cut">{act}</span>
              </button>
            )}
            {isOpen &&
              (editing ? (
                <button type="button" class="btn tall" onClick={undo}>
                  Undo edit
                </button>
              ) : (
                <button type="button" class="btn tall" onClick={() => setEditing(true)}>
                  Edit…
                </button>
              ))}
            <button type="button" class="btn tall" onClick={() => setRejecting(true)}>
              {isPending ? "Reject…" : "Take it back…"}
            </button>
          </div>
        )}
        {isOpen && asked.link != null && (
          <p>
            <button type="button" class="btn" onClick={() => navigator.clipboard.writeText(asked.link ?? "").then(() => setCopied(true))}>
              <Icon name="link" />
              <span aria-live="polite">{copied ? "Copied" : "Copy link"}</span>
            </button>{" "}
            <span class="dim">
              A signed link for one other person: whoever has it may decide this one request, once, without signing in here, until it expires.
              {HERE.test(asked.link) && " It opens on this machine alone: ravi-otel ui --public-url makes it one for others."}
            </span>
          </p>
        )}
        {isOpen && session.value?.user && (
          <p class="dim as-who">
            As <b>{session.value.user}</b>. {changes && "The edit is checked and reviewed again before it runs."}
          </p>
        )}
      </section>
      {!isNarrow && <SoFar asked={asked} linked={linked} />}
      {rejecting && <Reject call={ask.call} initial={comment} onSend={(why) => send(false, why)} onClose={() => setRejecting(false)} />}
    </>
  );
}

const HERE = /^http:\/\/(127\.0\.0\.1|localhost|\[::1\])[:/]/;

/** Keep a draft only while it says something else than was asked. */
function drafted(drafts: Drafts, argument: Argument, value: string): Drafts {
  const { [argument.name]: _, ...rest } = drafts;
  return value === (argument.value ?? "") ? rest : { ...rest, [argument.name]: value };
}

interface RowProps {
  argument: Argument;
  editing: boolean;
  draft: string | undefined;
  flaw: string | null;
  onDraft: (json: string) => void;
}

function Row({ argument, editing, draft, flaw, onDraft }: RowProps) {
  const isEdited = argument.edited !== null;
  const isFilled = editing && (argument.value !== null || argument.field != null);
  if (!isFilled && argument.value === null && !isEdited) return null; // what its tool takes besides, and nobody gave
  return (
    <tr class={isEdited ? "edited" : ""}>
      <td>{argument.name}</td>
      <td>
        {isFilled ? (
          <>
            <Field argument={argument} draft={draft} flaw={flaw} onDraft={onDraft} />
            {isEdited && argument.value !== null && (
              <span class="reads">
                was <span class="was">{argument.value}</span>
              </span>
            )}
          </>
        ) : (
          <>
            {isEdited && argument.value !== null ? <span class="was">{argument.value}</span> : <span>{argument.value}</span>}{" "}
            {isEdited && <span class="becomes">{argument.edited || "left out"}</span>}
          </>
        )}
        {argument.reads !== null && <span class="reads">reads: {argument.reads}</span>}
      </td>
      <td class="dim" title={argument.field?.says}>
        {argument.type}
      </td>
    </tr>
  );
}

/** A field for one argument by what its tool takes, else by what it is: a text without quotes, a number, a choice, or JSON. */
function Field({ argument, draft, flaw, onDraft }: Omit<RowProps, "editing">) {
  const hint = useId();
  const field = argument.field ?? null;
  const json = draft ?? argument.value ?? "";
  const kind = field?.kind ?? KINDS[argument.type] ?? "json";
  const known = {
    class: "field",
    "aria-label": `New value of ${argument.name}`,
    "aria-describedby": field ? hint : undefined,
    "aria-invalid": flaw !== null,
    "aria-required": field?.required,
  };
  return (
    <>
      {kind === "flag" || kind === "choice" ? (
        <select {...known} value={json} onChange={(event) => onDraft(event.currentTarget.value)}>
          {choices(kind, field, json).map((each) => (
            <option key={each} value={each}>
              {each || "left out"}
            </option>
          ))}
        </select>
      ) : kind === "text" ? (
        <textarea {...known} rows={1} value={asText(json)} onInput={(event) => onDraft(written(argument, event.currentTarget.value))} />
      ) : kind === "json" ? (
        <textarea {...known} value={json} onInput={(event) => onDraft(event.currentTarget.value)} />
      ) : (
        <input {...known} inputMode={kind === "whole" ? "numeric" : "decimal"} value={json} onInput={(event) => onDraft(event.currentTarget.value.trim())} />
      )}
      {field && (
        <span id={hint} class={flaw === null ? "reads" : "reads flaw"} role={flaw === null ? undefined : "alert"}>
          {flaw ?? field.says}
        </span>
      )}
    </>
  );
}

const KINDS: Readonly<Record<string, string>> = { "true or false": "flag", text: "text", number: "number" };

function choices(kind: string, field: Argument["field"] | null, json: string): string[] {
  const known = kind === "choice" ? (field?.choices ?? []) : ["true", "false", ...(field?.nullable ? ["null"] : [])];
  const out = field && !field.required ? [""] : [];
  return [...new Set([...known, ...out, json])];
}

/** A text as it is read; null and nothing at all are shown as an empty one. */
function asText(json: string): string {
  const value: unknown = json === "" ? "" : JSON.parse(json);
  return typeof value === "string" ? value : "";
}

/** What a text that was typed stands for: an empty one for what was there, or was not, where nothing else was asked. */
function written(argument: Argument, text: string): string {
  if (text === "" && (argument.value === null || argument.value === "null")) return argument.value ?? "";
  return asJson(text);
}

/** Write a text as the server does: JSON in ASCII. */
const asJson = (text: string): string =>
  JSON.stringify(text).replace(/[\u007f-\uffff]/g, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** What the run may still spend, while it runs. */
function Leaves({ run }: { run: string | null }) {
  const row = run === null ? undefined : now.value?.rows.find((each) => each.run === run && each.kind === "run");
  if (!row || row.bars.length === 0) return null;
  return (
    <div>
      <h2>What its run may spend</h2>
      <div class="leaves">
        {row.bars.map((bar) => (
          <LimitBar key={bar.kind} bar={bar} />
        ))}
      </div>
    </div>
  );
}

function Reject({ call, initial, onSend, onClose }: { call: string; initial: string; onSend: (why: string) => Promise<void>; onClose: () => void }) {
  const [why, setWhy] = useState(initial);
  return (
    <Confirm title="Reject it?" act="Reject it" leave="Leave it waiting" onAct={() => onSend(why)} onClose={onClose}>
      <p class="mono">{call}</p>
      <label class="ask-field">
        Why: the model may be told
        <textarea class="field" maxLength={2000} value={why} onInput={(event) => setWhy(event.currentTarget.value)} />
      </label>
      <p>It will not run, and its program is told so. Nothing takes back a rejection.</p>
    </Confirm>
  );
}
