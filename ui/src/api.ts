// What the server says, by the types that are made of its own models; a refusal arrives as the one sentence it was written as.
import { signal } from "@preact/signals";
import type { components } from "./schema.d.ts";
import { holdZone } from "./words.ts";

type Schemas = components["schemas"];
export type Tone = Schemas["Note"]["tone"];
export type Bar = Schemas["Bar"];
export type Now = Schemas["Now"];
export type NowRow = Schemas["NowRow"];
export type Refusal = Schemas["Refusal"];
export type Limits = Schemas["Limits"];
export type Limit = Schemas["Limit"];
export type Command = Schemas["Command"];
export type Ask = Schemas["Ask"];
export type Asked = Schemas["Asked"];
export type Argument = Schemas["Argument"];
export type Edited = Schemas["Edited"];
export type Linked = Schemas["Linked"];
export type Inbox = Schemas["Inbox"];
export type Audit = Schemas["Audit"];
export type AuditEntry = Schemas["AuditEntry"];
export type Session = Schemas["Session"];

interface Exported {
  at: string;
  open: Schemas["NowRow"][];
  run: Schemas["Run"];
  calls: Record<string, Schemas["Call"]>;
}

/** Who looks, and what they may do; unknown until the server said so. */
export const session = signal<Session | null>(null);

export class Refused extends Error {}

async function asked<T>(path: string, init?: RequestInit): Promise<T> {
  let answer: Response;
  try {
    answer = await fetch(path, init);
  } catch {
    throw new Refused("The server does not answer. Is `ravi-otel ui` still running?");
  }
  if (!answer.ok) throw new Refused((await answer.text()).trim() || `The server answered ${answer.status}.`);
  return (await answer.json()) as T;
}

/** A run that was exported into this very file, with its calls: then nobody is asked for anything. */
export const told: Exported | null = JSON.parse(document.getElementById("told")?.textContent ?? "null") as Exported | null;

export async function get<T>(path: string, abort?: AbortSignal): Promise<T> {
  if (told === null) return asked<T>(path, abort ? { signal: abort } : undefined);
  const known = path.startsWith("/api/calls/") ? told.calls[decodeURIComponent(path.slice("/api/calls/".length))] : told.run;
  if (known === undefined) throw new Refused("It is not in this file.");
  return known as T;
}

export async function post<T>(path: string, body: unknown): Promise<T> {
  const known = session.value ?? (await begin());
  const headers = { "content-type": "application/json", "x-ravi-token": known.token };
  return asked<T>(path, { method: "POST", headers, body: JSON.stringify(body) });
}

export async function begin(): Promise<Session> {
  session.value = await get<Session>("/api/session");
  holdZone(session.value.zone);
  return session.value;
}

export const sentence = (error: unknown): string => (error instanceof Error ? error.message : String(error));

export type Runs = Schemas["Runs"];
export type RunRow = Schemas["RunRow"];
export type Run = Schemas["Run"];
export type TreeRow = Run["rows"][number];
export type Call = Schemas["Call"];
export type Curve = Schemas["Curve"];
export type Spend = Schemas["Spend"];
export type SpendRow = Schemas["SpendRow"];
export type Find = Schemas["Find"];
