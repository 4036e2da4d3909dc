import { useState } from "preact/hooks";
import type { Call } from "../api.ts";
import "./Conversation.css";

type Message = Call["messages"][number];
const LONG = 1200;
const MANY = 12;

/** What was said, as a conversation; long texts and long conversations are folded, and every word of it is a text node. */
export function Conversation({ messages }: { messages: readonly Message[] }) {
  const [all, setAll] = useState(false);
  if (messages.length === 0) return <p class="soft">Nothing was said.</p>;
  const hides = !all && messages.length > MANY;
  const first = hides ? messages.slice(0, 2) : messages;
  const last = hides ? messages.slice(-8) : [];
  return (
    <div class="conversation">
      {first.map((each, at) => (
        <Said key={at} message={each} />
      ))}
      {hides && (
        <button type="button" class="btn between" onClick={() => setAll(true)}>
          {(messages.length - 10).toLocaleString("en-US")} messages between
        </button>
      )}
      {last.map((each, at) => (
        <Said key={`last-${at}`} message={each} />
      ))}
    </div>
  );
}

function Said({ message }: { message: Message }) {
  return (
    <div class="msg">
      <span class="role">{message.role}</span>
      <div class="text">
        {message.parts.map(([kind, text], at) => (
          <Part key={at} kind={kind} text={text} />
        ))}
      </div>
    </div>
  );
}

function Part({ kind, text }: { kind: string; text: string }) {
  const [open, setOpen] = useState(false);
  const cut = !open && text.length > LONG;
  return (
    <>
      <div class={kind === "text" ? "" : kind === "thinks" ? "soft" : "callbox"}>{cut ? `${text.slice(0, LONG)}…` : text}</div>
      {cut && (
        <button type="button" class="btn" onClick={() => setOpen(true)}>
          All {text.length.toLocaleString("en-US")} characters
        </button>
      )}
    </>
  );
}
