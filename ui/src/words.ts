import { signal } from "@preact/signals";

// Clock and calendar in words: the only figures that the page makes itself, since they are of the moment at which it is looked at.

/** `0:20`, `21:04`, `2:03:09`: how long, to the second. */
export function span(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  const two = (part: number) => String(part).padStart(2, "0");
  const minutes = Math.floor(whole / 60);
  return minutes < 60 ? `${minutes}:${two(whole % 60)}` : `${Math.floor(minutes / 60)}:${two(minutes % 60)}:${two(whole % 60)}`;
}

/** The time zone in which everything is told: the server's, as in its terminal; the browser's own until that is known. */
export const zone = signal<string | undefined>(undefined);

/** Hold a time zone, unless this browser does not know it. */
export function holdZone(name: string): void {
  try {
    new Intl.DateTimeFormat("en-GB", { timeZone: name });
    zone.value = name;
  } catch {
    zone.value = undefined;
  }
}

/** Whether the clock there says another time than the browser's. */
export function isElsewhere(now: Date = new Date()): boolean {
  return now.toLocaleString("en-GB", { timeZone: zone.value }) !== now.toLocaleString("en-GB");
}

/** `14:02:34` today, else `4 Nov 14:02`. */
export function moment(unix: number | null, now: Date = new Date()): string {
  const at = new Date((unix ?? NaN) * 1000);
  if (Number.isNaN(at.getTime())) return "?";
  const timeZone = zone.value;
  const day = (each: Date) => each.toLocaleDateString("en-GB", { timeZone, year: "numeric", month: "short", day: "numeric" });
  const time = at.toLocaleTimeString("en-GB", { timeZone, hour12: false });
  if (day(at) === day(now)) return time;
  return `${at.toLocaleDateString("en-GB", { timeZone, day: "numeric", month: "short" })} ${time.slice(0, 5)}`;
}

/** A text from outside as one line of visible characters: nothing in it turns round what stands beside it. */
export const visible = (text: string): string => text.replace(/[\p{C}\p{Zl}\p{Zp}]+/gu, " ").trim();

/** A word of a command line that can be copied: quoted where a shell would read more into it. */
export const quoted = (text: string): string => (/^[\w.,:=@%+/-]+$/.test(text) ? text : `'${visible(text).replaceAll("'", `'\\''`)}'`);

/** The command that shows the same, with the options that it has a name for. */
export const command = (name: string, asked: URLSearchParams, options: Readonly<Record<string, string>>): string =>
  [`ravi-otel ${name}`, ...[...asked].flatMap(([each, value]) => (options[each] && value ? [`--${options[each]} ${quoted(value)}`] : []))].join(" ");

/** `1 run`, `2 runs`. */
export const many = (number: number, thing: string): string => `${number.toLocaleString("en-US")} ${thing}${number === 1 ? "" : "s"}`;
