import type { ComponentChildren } from "preact";
import type { Tone } from "../api.ts";

const SHAPES: Record<string, ComponentChildren> = {
  run: <circle cx="6" cy="6" r="4" />,
  ok: <path class="stroke" d="M1.5 6.4 4.7 9.6 10.6 2.9" />,
  near: <path d="M6 1.2 11.4 10.8H.6Z" />,
  refused: <rect x="1.5" y="1.5" width="9" height="9" />,
  wait: <path d="M6 .4 11.6 6 6 11.6.4 6Z" />,
  paused: <path d="M2.4 1.6h2.6v8.8H2.4zM7 1.6h2.6v8.8H7z" />,
  error: <path class="stroke" d="M2.4 2.4 9.6 9.6M9.6 2.4 2.4 9.6" />,
  unknown: <rect class="dashed" x="1.5" y="1.5" width="9" height="9" />,
  chat: <path d="M1.5 2.5h9v6h-5L3 10.6V8.5H1.5Z" />,
  tool: <path d="M10.4 3.2a2.8 2.8 0 0 1-3.7 3.3L3 10.2a1 1 0 0 1-1.4-1.4l3.7-3.7A2.8 2.8 0 0 1 8.8 1.6L7.2 3.2l1.6 1.6Z" />,
};
const LINES: Record<string, ComponentChildren> = {
  agent: (
    <>
      <circle cx="6" cy="3.6" r="2.2" />
      <path d="M1.8 10.6c.3-2.4 2-3.6 4.2-3.6s3.9 1.2 4.2 3.6" />
    </>
  ),
  link: <path d="M5 7a2 2 0 0 0 2.9 0l2-2A2 2 0 0 0 7 2.1l-.7.7M7 5a2 2 0 0 0-2.9 0l-2 2A2 2 0 0 0 5 9.9l.7-.7" />,
  find: (
    <>
      <circle cx="5.2" cy="5.2" r="3.4" />
      <path d="m7.8 7.8 3 3" />
    </>
  ),
  theme: (
    <>
      <circle cx="6" cy="6" r="4.6" />
      <path class="filled" d="M6 1.4a4.6 4.6 0 0 1 0 9.2Z" />
    </>
  ),
  copy: <path d="M4.2 4.2h6v6h-6zM7.8 4V1.8h-6v6H4" />,
  down: <path d="m3 4.5 3 3 3-3" />,
  right: <path d="m4.5 3 3 3-3 3" />,
};

export function Icon({ name, class: more = "" }: { name: string; class?: string }) {
  const line = LINES[name];
  return (
    <svg class={`i${line ? " line" : ""} ${more}`} viewBox="0 0 12 12" aria-hidden="true">
      {line ?? SHAPES[name]}
    </svg>
  );
}

/** A state: shape and word, always together. */
export function State({ tone, children, title }: { tone: Tone; children: ComponentChildren; title?: string | undefined }) {
  return (
    <span class={`st st-${tone}`} title={title}>
      <Icon name={tone} />
      <span>{children}</span>
    </span>
  );
}

/** What a page says of itself, beside its name. */
export function Says({ says }: { says: readonly (readonly [Tone, string])[] }) {
  return (
    <p class="say">
      {says.map(([tone, words], at) =>
        at === 0 ? (
          <span key={words}>{words}</span>
        ) : (
          <State key={words} tone={tone}>
            {words}
          </State>
        ),
      )}
    </p>
  );
}
