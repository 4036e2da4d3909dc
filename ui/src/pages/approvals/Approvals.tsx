import { useEffect, useRef, useState } from "preact/hooks";
import { Link, useLocation } from "wouter-preact";
import { type Ask, type Asked, type Inbox, session } from "../../api.ts";
import { useGet, useKeys, useMedia, useSeconds } from "../../hooks.ts";
import { now } from "../../live.ts";
import { Empty, Failed } from "../../parts/Empty.tsx";
import { type Key, Page } from "../../parts/Frame.tsx";
import { Icon, State } from "../../parts/Icon.tsx";
import { many, moment, span } from "../../words.ts";
import { Request } from "./Request.tsx";
import { useSettling } from "./settling.ts";
import "./approvals.css";

const KEYS: readonly Key[] = [
  { keys: ["j", "k"], does: "move" },
  { keys: ["a"], does: "approve" },
  { keys: ["e"], does: "edit" },
  { keys: ["r"], does: "reject" },
];

export function ApprovalsPage({ id }: { id: string | undefined }) {
  const [, go] = useLocation();
  const [turn, setTurn] = useState(0);
  const mark = `${now.value?.waiting ?? 0}/${turn}`;
  const { data, error } = useGet<Inbox>("/api/approvals", mark);
  const isPhone = useMedia("(max-width: 640px)");
  const listed = data ? [...data.waiting, ...data.answered] : [];
  const shown = id ?? (isPhone ? undefined : listed[0]?.id);
  const one = useGet<Asked>(shown === undefined ? null : `/api/approvals/${encodeURIComponent(shown)}`, mark);
  useNotices(data);
  useSettling(one.data ?? undefined, () => setTurn((before) => before + 1));
  const move = (step: number) => {
    const at = listed.findIndex((each) => each.id === shown);
    const next = listed[Math.max(0, Math.min(listed.length - 1, at + step))];
    if (next) go(`/approvals/${next.id}`, { replace: true });
  };
  useKeys({ j: () => move(1), k: () => move(-1), ArrowDown: () => move(1), ArrowUp: () => move(-1) });
  const waiting = data?.waiting.filter((each) => each.can.includes("approve")).length ?? 0;
  const others = (data?.waiting.length ?? 0) - waiting;
  const alone = isPhone && id !== undefined;
  return (
    <Page name="Approvals" looks={data ? data.where : "the queue of approvals"} cli="ravi-otel approvals list" keys={KEYS}>
      {alone && <h1 class="only-screenreader">Approval</h1>}
      {!alone && (
        <div class="head">
          <h1>Approvals</h1>
          <p class="say">
            {waiting > 0 && <State tone="wait">{many(waiting, "request")} for you</State>}{" "}
            {others > 0 && <span>{waiting > 0 ? `${others} for others` : `${many(others, "request")} for others`}</span>}{" "}
            {session.value?.user && (
              <span>
                You are <b>{session.value.user}</b>.
              </span>
            )}
          </p>
          <div class="acts">
            <Notify />
          </div>
        </div>
      )}
      {error !== null && <Failed error={error} />}
      {data && listed.length === 0 && (
        <Empty
          ways={[
            ["Have a program ask a person", "Gate(policy, tools=[issue_refund], approver=ApprovalQueue())"],
            ["See it work: the refund desk", "python examples/refund_desk/refund_desk.py"],
          ]}
        >
          <p>
            Nothing waits for you. A call that a rule escalates shows up here, with exactly the arguments that would run. Looking in{" "}
            <code>{data.where}</code>; <code>ravi-otel ui --queue PATH</code> names another queue.
          </p>
        </Empty>
      )}
      {listed.length > 0 && data && (
        <div class={alone ? "inbox alone" : "inbox"}>
          {!alone && <List data={data} shown={shown} />}
          {shown !== undefined && one.data?.ask.id === shown && (
            <Request key={shown} asked={one.data} path={`/api/approvals/${encodeURIComponent(shown)}`} onDone={() => setTurn((before) => before + 1)} />
          )}
          {one.error !== null && <Failed error={one.error} />}
        </div>
      )}
    </Page>
  );
}

function List({ data, shown }: { data: Inbox; shown: string | undefined }) {
  const at = useSeconds();
  return (
    <div class="mails">
      <ul class="mail">
        {data.waiting.map((ask) => (
          <Mail
            key={ask.id}
            ask={ask}
            current={ask.id === shown}
            when={span(at - ask.asked_at)}
            sub={`${ask.expires_at === null ? "" : `expires in ${span(ask.expires_at - at)}, `}${ask.agent || "somebody"}${ask.run ? ` in ${ask.run_name || ask.run}` : ""}`}
          />
        ))}
      </ul>
      {data.answered.length > 0 && (
        <>
          <div class="bandhead">
            <h2>Over</h2>
            <span class="dim">{data.answered.length}</span>
          </div>
          <ul class="mail">
            {data.answered.map((ask) => (
              <Mail key={ask.id} ask={ask} current={ask.id === shown} when={moment(ask.answered_at ?? ask.asked_at)} sub={ask.word} />
            ))}
          </ul>
        </>
      )}
    </div>
  );
}

function Mail({ ask, current, when, sub }: { ask: Ask; current: boolean; when: string; sub: string }) {
  return (
    <li>
      <Link href={`/approvals/${ask.id}`} aria-current={current ? "true" : undefined}>
        <Icon name={ask.tone} class={`shape-${ask.tone}`} />
        <span class="mono cut" title={ask.call}>
          {ask.call}
        </span>
        <span class="when fig">{when}</span>
        <span class="sub cut" title={sub}>
          {sub}
        </span>
      </Link>
    </li>
  );
}

/** Say in a notice of the browser's that something waits, where it was allowed to: never what, which a locked screen would show. */
function useNotices(data: Inbox | null): void {
  const known = useRef<Set<string> | null>(null);
  useEffect(() => {
    if (!data) return;
    const ids = new Set(data.waiting.filter((each) => each.can.includes("approve")).map((each) => each.id));
    const fresh = known.current === null ? [] : [...ids].filter((each) => !known.current?.has(each));
    known.current = ids;
    if (fresh.length > 0 && "Notification" in window && Notification.permission === "granted") {
      new Notification("ravi", { body: `${many(ids.size, "request")} for your approval`, tag: "ravi-approvals" });
    }
  }, [data]);
}

function Notify() {
  const [state, setState] = useState(() => ("Notification" in window ? Notification.permission : "denied"));
  if (state !== "default") return state === "granted" ? <span class="dim">You are notified here.</span> : null;
  return (
    <button type="button" class="btn" onClick={async () => setState(await Notification.requestPermission())}>
      Notify me here
    </button>
  );
}
