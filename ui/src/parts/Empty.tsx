import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { Icon } from "./Icon.tsx";
import "./Empty.css";

export function Typed({ line }: { line: string }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(line);
    setCopied(true);
    setTimeout(() => setCopied(false), 2000);
  };
  return (
    <div class="typed">
      <pre tabIndex={0}>{line}</pre>
      <button type="button" class="btn" onClick={copy} aria-label={`Copy: ${line}`}>
        <Icon name="copy" />
        <span aria-live="polite">{copied ? "Copied" : "Copy"}</span>
      </button>
    </div>
  );
}

interface EmptyProps {
  children: ComponentChildren;
  ways?: readonly (readonly [string, string])[];
  after?: ComponentChildren;
}

/** An empty page: what would fill it, the lines to type, and what there is to know before. */
export function Empty({ children, ways = [], after }: EmptyProps) {
  return (
    <div class="empty">
      {children}
      {ways.length > 0 && (
        <div class="ways">
          {ways.map(([name, line]) => (
            <section key={name}>
              <h2>{name}</h2>
              <Typed line={line} />
            </section>
          ))}
        </div>
      )}
      {after}
    </div>
  );
}

export function Failed({ error }: { error: string }) {
  return (
    <p class="failed" role="alert">
      <Icon name="error" /> {error}
    </p>
  );
}
