import { computed } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { Link, useLocation } from "wouter-preact";
import { session } from "../api.ts";
import { useKeys, useTitle } from "../hooks.ts";
import { heardAt, live, now, trouble } from "../live.ts";
import { isDark, setTheme } from "../theme.ts";
import { FindButton } from "./Find.tsx";
import { isElsewhere, moment, zone } from "../words.ts";
import { Icon, State } from "./Icon.tsx";

const PAGES = [
  ["/", "Now"],
  ["/runs", "Runs"],
  ["/spend", "Spend"],
  ["/limits", "Limits"],
  ["/approvals", "Approvals"],
  ["/audit", "Audit"],
] as const;

const waiting = computed(() => now.value?.waiting ?? 0);

function Top() {
  const [at] = useLocation();
  const turn = () => setTheme(isDark() ? "light" : "dark");
  return (
    <header class="top">
      <Link class="brand" href="/">
        <svg viewBox="0 0 20 12" aria-hidden="true">
          <rect x=".5" y="1.5" width="19" height="9" fill="none" stroke="currentColor" />
          <rect x="1" y="2" width="9" height="8" fill="currentColor" />
          <path d="M10 10l3-8h2l-3 8Z" fill="currentColor" opacity=".55" />
          <path d="M16 0v12" stroke="currentColor" />
        </svg>
        ravi
      </Link>
      <nav class="nav" aria-label="Pages">
        {PAGES.map(([href, name]) => (
          <Link key={href} href={href} aria-current={at === href || (href !== "/" && at.startsWith(`${href}/`)) ? "page" : undefined}>
            {name}
            {name === "Approvals" && waiting.value > 0 && (
              <span class="count">
                <Icon name="wait" />
                {waiting.value}
                <span class="only-screenreader"> wait for you</span>
              </span>
            )}
          </Link>
        ))}
      </nav>
      <div class="tools">
        {session.value?.read_only && <span class="dim">only shows</span>}
        <FindButton />
        <button type="button" class="btn bare icon" onClick={turn} aria-label="Light or dark">
          <Icon name="theme" />
        </button>
      </div>
    </header>
  );
}

export interface Key {
  keys: readonly string[];
  does: string;
}

const KEYS: readonly Key[] = [{ keys: ["?"], does: "keys" }];

function shownAtOnce(drawn: HTMLDialogElement | null): void {
  if (drawn && !drawn.open) drawn.showModal();
}

function Keys({ keys, onClose }: { keys: readonly Key[]; onClose: () => void }) {
  return (
    <dialog ref={shownAtOnce} aria-label="Keys" onClose={onClose}>
      <div class="in">
        <h2>Keys of this page</h2>
        <dl class="kv">
          {keys.map((each) => (
            <>
              <dt>
                {each.keys.map((key) => (
                  <kbd key={key}>{key}</kbd>
                ))}
              </dt>
              <dd class="words">{each.does}</dd>
            </>
          ))}
        </dl>
      </div>
      <div class="foot">
        <button type="button" class="btn tall" onClick={onClose}>
          Close
        </button>
      </div>
    </dialog>
  );
}

interface PageProps {
  name: string;
  cli?: string;
  looks: string;
  keys?: readonly Key[];
  children: ComponentChildren;
  fixed?: boolean;
}

/** Say that what is shown is of then, and why nothing newer came: nothing old is to pass for what is so now. */
function NotConnected() {
  if (live.value || trouble.value === null) return null;
  return (
    <p class="not-connected" role="alert">
      <Icon name="unknown" />
      <span>
        <b>Not connected.</b> {heardAt.value !== null && <>What is shown was so at {moment(heardAt.value)}. </>}
        {trouble.value}
      </span>
    </p>
  );
}

/** A page: the bar at the top, what is shown, and a line that says what is looked at, the same in a terminal, and the keys. */
export function Page({ name, cli, looks, keys = [], children, fixed = false }: PageProps) {
  useTitle(name);
  const [shown, setShown] = useState(false);
  const all = [...keys, ...KEYS];
  useKeys({ "?": () => setShown(true) });
  return (
    <div class={fixed ? "frame fixed" : "frame"}>
      <Top />
      <main class="main">
        <NotConnected />
        {children}
      </main>
      <footer class="status">
        <span>
          {looks} · {live.value ? "live" : <State tone="unknown">not connected</State>}
          {isElsewhere() && ` · times of ${zone.value}`}
        </span>
        {cli !== undefined && (
          <span class="cli" title="The same in a terminal">
            $ {cli}
          </span>
        )}
        <span class="keys">
          {all.map((each) => (
            <span key={each.does}>
              {each.keys.map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
              {each.does}
            </span>
          ))}
        </span>
      </footer>
      {shown && <Keys keys={all} onClose={() => setShown(false)} />}
    </div>
  );
}
