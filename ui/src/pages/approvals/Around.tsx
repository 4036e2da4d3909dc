import { Link } from "wouter-preact";
import type { Asked } from "../../api.ts";
import { useMedia } from "../../hooks.ts";
import { Conversation } from "../../parts/Conversation.tsx";
import { State } from "../../parts/Icon.tsx";

/** What the run had come to, and what was said to the model that asked for the call. */
export function SoFar({ asked, linked }: { asked: Asked; linked: boolean }) {
  const known = asked.so_far;
  const isBeside = useMedia("(min-width: 1280px)");
  if (!known) return null;
  return (
    <aside class="ask-side" aria-label="The run so far">
      <details open={isBeside || known.messages.length > 0}>
        <summary>
          <h2>The run so far</h2>
        </summary>
        <p class="soft">
          {known.says}
          {known.captured !== null && linked && (
            <>
              {". "}
              <Link href={`/runs/${encodeURIComponent(known.run)}`}>Open the run</Link>
            </>
          )}
        </p>
        {known.captured === false && (
          <p class="soft">
            What was said is not kept. <code>ravi-otel run --content</code> keeps it from the next run on.
          </p>
        )}
        {known.messages.length > 0 && <Conversation messages={known.messages} />}
      </details>
    </aside>
  );
}

/** What ran by the approval, and what came of it. */
export function Ran({ asked }: { asked: Asked }) {
  const known = asked.ran;
  if (!known) return null;
  const run = asked.ask.run;
  return (
    <div>
      <h2>What ran</h2>
      <p>
        <State tone={known.tone}>{known.says}</State>{" "}
        {known.call !== null && run !== null && <Link href={`/runs/${encodeURIComponent(run)}?item=${encodeURIComponent(known.call)}`}>Open the call</Link>}
      </p>
      {known.result !== null && <pre class="result">{known.result}</pre>}
    </div>
  );
}
