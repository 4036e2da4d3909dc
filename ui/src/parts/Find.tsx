import { useEffect, useRef, useState } from "preact/hooks";
import { useLocation } from "wouter-preact";
import type { Find } from "../api.ts";
import { useGet } from "../hooks.ts";
import { now } from "../live.ts";
import { setTheme } from "../theme.ts";
import { Icon } from "./Icon.tsx";
import "./Find.css";

const PAGES = [
  ["page", "/", "Now"],
  ["page", "/runs", "Runs"],
  ["page", "/spend", "Spend"],
  ["page", "/limits", "Limits"],
  ["page", "/approvals", "Approvals"],
  ["page", "/audit", "Audit"],
  ["runs", "/runs?status=refused", "Runs with a refused call"],
  ["runs", "/runs?status=stopped", "Runs that a limit stopped"],
] as const;

interface Hit {
  kind: string;
  name: string;
  href: string;
  act?: () => void;
}

const SETTINGS: readonly Hit[] = [
  { kind: "setting", name: "Light theme", href: "", act: () => setTheme("light") },
  { kind: "setting", name: "Dark theme", href: "", act: () => setTheme("dark") },
];

/** The search box: pages, what runs now, and what the store knows by an id, a name or words. */
export function FindButton() {
  const [open, setOpen] = useState(false);
  useEffect(() => {
    const heard = (event: KeyboardEvent) => {
      if (event.key === "k" && (event.metaKey || event.ctrlKey)) {
        event.preventDefault();
        setOpen(true);
      }
    };
    addEventListener("keydown", heard);
    return () => removeEventListener("keydown", heard);
  }, []);
  return (
    <>
      <button type="button" class="find" onClick={() => setOpen(true)}>
        <Icon name="find" />
        <span>Find a run, agent, limit</span>
        <kbd>⌘K</kbd>
      </button>
      {open && <Finding onClose={() => setOpen(false)} />}
    </>
  );
}

function Finding({ onClose }: { onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [, go] = useLocation();
  const [text, setText] = useState("");
  const [asked, setAsked] = useState("");
  const [at, setAt] = useState(0);
  const { data } = useGet<Find>(asked === "" ? null : `/api/find?text=${encodeURIComponent(asked)}`);
  useEffect(() => dialog.current?.showModal(), []);
  useEffect(() => {
    const timer = setTimeout(() => setAsked(text.trim()), 120);
    return () => clearTimeout(timer);
  }, [text]);
  const low = text.trim().toLowerCase();
  const hits: Hit[] = [
    ...PAGES.filter(([, , name]) => name.toLowerCase().includes(low)).map(([kind, href, name]) => ({ kind, name, href })),
    ...(low === "" ? [] : (now.value?.rows ?? []))
      .filter((row) => row.run && row.name.toLowerCase().includes(low))
      .slice(0, 8)
      .map((row) => ({ kind: `${row.kind}, open now`, name: row.name, href: `/runs/${encodeURIComponent(row.run ?? "")}` })),
    ...(low === "" ? [] : (now.value?.rows ?? []))
      .flatMap((row) => row.bars.map((bar) => ({ kind: `limit of ${row.kind} ${row.name}, ${bar.share}`, name: bar.spec ?? bar.title, href: "/limits" })))
      .filter((hit) => hit.name.toLowerCase().includes(low) || "limit".startsWith(low))
      .slice(0, 8),
    ...SETTINGS.filter(({ name }) => low !== "" && name.toLowerCase().includes(low)),
    ...(asked === "" ? [] : (data?.found ?? [])).map(([kind, href, name]) => ({ kind, name, href })),
  ];
  const isAnswered = asked !== "" && asked === text.trim() && data !== null;
  const chosen = hits[Math.min(at, hits.length - 1)];
  const open = (hit: Hit | undefined) => {
    if (!hit) return;
    onClose();
    if (hit.act) hit.act();
    else go(hit.href);
  };
  return (
    <dialog ref={dialog} class="finding" aria-label="Find" onClose={onClose}>
      <input
        class="field"
        type="search"
        role="combobox"
        aria-expanded="true"
        aria-controls="hits"
        aria-activedescendant={chosen ? `hit-${hits.indexOf(chosen)}` : undefined}
        aria-label="Find a run, an agent, or words"
        placeholder="An id, a name, a limit, or words that were said"
        autoFocus
        value={text}
        onInput={(event) => {
          setText(event.currentTarget.value);
          setAt(0);
        }}
        onKeyDown={(event) => {
          if (event.key === "ArrowDown") setAt(Math.min(hits.length - 1, at + 1));
          else if (event.key === "ArrowUp") setAt(Math.max(0, at - 1));
          else if (event.key === "Enter") open(chosen);
          else return;
          event.preventDefault();
        }}
      />
      <ul id="hits" role="listbox" aria-label="Found">
        {hits.slice(0, 30).map((hit, place) => (
          <li key={`${hit.kind}/${hit.href}/${place}`} id={`hit-${place}`} role="option" aria-selected={hit === chosen} onClick={() => open(hit)}>
            <span class="cut" title={hit.name}>
              {hit.name}
            </span>
            <span class="dim">{hit.kind}</span>
          </li>
        ))}
      </ul>
      {hits.length === 0 && isAnswered && (
        <p class="dim none" role="status">
          Nothing has this in it. What can be found: any id, the name of a run, an agent, a model, a user or a tenant, the sentence of a refusal, a limit of what
          runs, and words that were said where they are kept.
        </p>
      )}
    </dialog>
  );
}
