// One stream of events for the whole page: what is open, as it changes, and whether the server still answers.
import { signal } from "@preact/signals";
import type { Now } from "./api.ts";

export const now = signal<Now | null>(null);
/** Whether the stream is open; while it is not, what is shown is said to be old. */
export const live = signal(false);

let source: EventSource | null = null;

export function listen(): void {
  if (source) return;
  source = new EventSource("/api/events");
  source.addEventListener("open", () => {
    live.value = true;
  });
  source.addEventListener("error", () => {
    live.value = false;
    if (source?.readyState === EventSource.CLOSED) {
      source = null;
      setTimeout(listen, 2000); // the browser gives up where a server answers with an error; one that returns is asked again
    }
  });
  source.addEventListener("now", (event) => {
    live.value = true;
    now.value = JSON.parse((event as MessageEvent<string>).data) as Now;
  });
}
