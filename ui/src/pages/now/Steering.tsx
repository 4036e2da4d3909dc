import { useState } from "preact/hooks";
import { type Bar, type Command, type NowRow, post } from "../../api.ts";
import { Confirm } from "../../parts/Confirm.tsx";
import { Meter } from "../../parts/LimitBar.tsx";
import { useTried, Would } from "../../parts/Trying.tsx";

export interface Asked {
  op: "cancel" | "close" | "pause" | "stop" | "resume" | "set_limit" | "reprioritize";
  row: Pick<NowRow, "kind" | "name" | "bars" | "process" | "scope"> & { priority?: string };
  bar?: Bar;
}

interface Words {
  button: string;
  act: string;
  leave: string;
  says: string;
}

/** What a button says, and what comes of it; nothing is done without the second. */
export const WORDS: Record<Asked["op"], Words> = {
  pause: { button: "Pause…", act: "Pause it", leave: "Let it work", says: "It keeps what it has, gives its slot to others, and waits until it is resumed." },
  stop: { button: "Stop…", act: "Stop it", leave: "Let it work", says: "Its next call or tool ends it with what it has: it was not written to wait." },
  resume: { button: "Resume…", act: "Resume it", leave: "Leave it paused", says: "It goes on as soon as there is a slot for it." },
  cancel: { button: "Cancel…", act: "Cancel it", leave: "Let it work", says: "All below it ends too: calls in flight are ended and settled, and no other call is let through." },
  close: { button: "Close…", act: "Close it", leave: "Leave it open", says: "No other call is let through in it: the program is refused where it asks for the next. What is in flight is settled." },
  set_limit: { button: "Set limit…", act: "Set it", leave: "Leave it", says: "It counts from the next call on. What is used stays used." },
  reprioritize: { button: "Priority…", act: "Set it", leave: "Leave it", says: "Where slots are short, what is more urgent takes those of what is less, and waits in front of it." },
};

const ORDER: readonly Asked["op"][] = ["resume", "pause", "stop", "set_limit", "reprioritize", "close", "cancel"];

/** What may be done to a row, what ends it last. */
export const actsOf = (row: Pick<NowRow, "can">): Asked["op"][] => ORDER.filter((op) => row.can.includes(op));

const PRIORITIES = ["critical", "high", "normal", "low", "background"] as const;

export function Steering({ asked, onClose }: { asked: Asked; onClose: () => void }) {
  const { op, row } = asked;
  const words = WORDS[op];
  const [kind, setKind] = useState((asked.bar ?? row.bars[0])?.kind ?? "");
  const bar = asked.bar ?? row.bars.find((each) => each.kind === kind) ?? row.bars[0];
  const [value, setValue] = useState(bar?.value ?? "");
  const [reason, setReason] = useState("");
  const [priority, setPriority] = useState(row.priority || "normal");
  const whose = `${row.kind} ${row.name}`.trim();
  const send = () => {
    const sent: Command = { process: row.process, scope: row.scope ?? "", op: op === "stop" ? "pause" : op };
    if (op === "set_limit") Object.assign(sent, { kind: bar?.kind, value });
    if (op === "reprioritize") sent.value = priority;
    if (op === "cancel" && reason.trim() !== "") sent.reason = reason.trim();
    return post("/api/commands", sent);
  };
  const setting = op === "set_limit" && bar !== undefined;
  const ranking = op === "reprioritize";
  const { ready, pending, tried } = useTried(setting ? "/api/limits/try" : null, { process: row.process, scope: row.scope ?? "", op: "set_limit", kind: bar?.kind ?? "", value }, bar?.value ?? "");
  return (
    <Confirm
      title={ranking ? `Set priority of ${whose}` : setting ? `Set ${bar.title} of ${whose}` : `${words.act.replace(" it", "")} ${whose}?`}
      act={ranking ? `Set it to ${priority}` : setting ? `Set ${bar.title} to ${value || "…"}` : words.act}
      leave={ranking ? `Leave it at ${row.priority}` : setting ? `Leave it at ${bar.value}` : words.leave}
      ready={setting ? ready : !ranking || priority !== row.priority}
      pending={pending}
      onAct={send}
      onClose={onClose}
    >
      {setting && (
        <>
          {row.bars.length > 1 && !asked.bar && (
            <label class="ask-field">
              Limit
              <select
                class="field"
                value={kind}
                onChange={(event) => {
                  setKind(event.currentTarget.value);
                  setValue(row.bars.find((each) => each.kind === event.currentTarget.value)?.value ?? "");
                }}
              >
                {row.bars.map((each) => (
                  <option key={each.kind} value={each.kind}>
                    {each.title}
                  </option>
                ))}
              </select>
            </label>
          )}
          <div class="ask-bar">
            <Meter bar={bar} tall />
            <span class="fig">
              {bar.text} · {bar.share}
            </span>
          </div>
          <label class="ask-field">
            New value
            <input class="field" value={value} autoFocus onInput={(event) => setValue(event.currentTarget.value)} />
          </label>
          <Would tried={tried} />
        </>
      )}
      {ranking && (
        <label class="ask-field">
          Priority
          <select class="field" value={priority} autoFocus onChange={(event) => setPriority(event.currentTarget.value)}>
            {PRIORITIES.map((each) => (
              <option key={each} value={each}>
                {each}
              </option>
            ))}
          </select>
        </label>
      )}
      {op === "cancel" && (
        <label class="ask-field">
          Why, for its log (may be left empty)
          <input class="field" value={reason} maxLength={500} onInput={(event) => setReason(event.currentTarget.value)} />
        </label>
      )}
      <p>{words.says}</p>
    </Confirm>
  );
}
