// One stream of events for the whole page: what is open, as it changes, and whether the server still answers.
import { signal } from "@preact/signals";
import { begin, type Now, sentence } from "./api.ts";

export const now = signal<Now | null>(null);
/** Whether the stream is open; while it is not, what is shown is said to be old. */
export const live = signal(false);
/** Why it is not, in the server's own words where it has any; null until that is known. */
export const trouble = signal<string | null>(null);
/** When something was heard last, as Unix time. */
export const heardAt = signal<number | null>(null);

/** The server says every five seconds that it is there: one that does not is gone, whatever the connection says. */
const SILENCE_MS = 12_000;
const AGAIN_MS = 2_000;

let source: EventSource | null = null;
let heard = 0;

function hear(): void {
  heard = Date.now();
  heardAt.value = heard / 1000;
  live.value = true;
  trouble.value = null;
}

/** Say that nothing is heard, and why: a server that started anew knows neither this page's cookie nor its token. */
function lose(): void {
  live.value = false;
  begin().then(
    () => {
      if (!live.value) trouble.value = "The server answers, but tells nothing new.";
    },
    (failed: unknown) => {
      trouble.value = sentence(failed);
    },
  );
}

function give(): void {
  source?.close();
  source = null;
  lose();
  setTimeout(listen, AGAIN_MS);
}

export function listen(): void {
  if (source) return;
  source = new EventSource("/api/events");
  source.addEventListener("open", () => {
    hear();
    begin().catch(() => undefined); // another server may have come back, which lets less be done
  });
  source.addEventListener("error", () => {
    if (source?.readyState === EventSource.CLOSED) give(); // the browser gives up where it is answered with an error
    else lose();
  });
  source.addEventListener("alive", hear);
  source.addEventListener("now", (event) => {
    now.value = JSON.parse((event as MessageEvent<string>).data) as Now;
    hear();
  });
}

setInterval(() => {
  if (live.value && Date.now() - heard > SILENCE_MS) give();
}, AGAIN_MS);
