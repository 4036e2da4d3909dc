import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { useSearch as useWrittenSearch } from "wouter-preact/use-browser-location";
import { get, sentence } from "./api.ts";

interface Loaded<T> {
  data: T | null;
  error: string | null;
  again: () => void;
}

/** Ask for something, and again when the path or `mark` changes; what was known stays until the answer is there. */
export function useGet<T>(path: string | null, mark: unknown = 0): Loaded<T> {
  const [data, setData] = useState<T | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    if (path === null) return;
    const abort = new AbortController();
    get<T>(path, abort.signal).then(
      (answer) => {
        setData(answer);
        setError(null);
      },
      (failed: unknown) => {
        if (!abort.signal.aborted) setError(sentence(failed));
      },
    );
    return () => abort.abort();
  }, [path, mark, turn]);
  return { data, error, again: () => setTurn((before) => before + 1) };
}

/** What the address asks for, as it is written: the router's own is decoded before it is taken apart, and a name may have `&` or `+` in it. */
export const useSearch = (): string => useWrittenSearch().replace(/^\?/, "");

const isTyping = (target: EventTarget | null): boolean =>
  target instanceof Element && target.closest("input, textarea, select, [role=tab], dialog") !== null;

/** Hear keys that are not meant for a field or a dialog. */
export function useKeys(keys: Record<string, (event: KeyboardEvent) => void>): void {
  const known = useRef(keys);
  known.current = keys;
  useLayoutEffect(() => { // heard as soon as it is there to be seen
    const heard = (event: KeyboardEvent) => {
      if (isTyping(event.target) || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "Enter" && event.target instanceof Element && event.target.closest("a, button")) return;
      const act = known.current[event.key];
      if (act) {
        event.preventDefault();
        act(event);
      }
    };
    addEventListener("keydown", heard);
    return () => removeEventListener("keydown", heard);
  }, []);
}

/** Give the page its name, which a screen reader says first and a tab shows. */
export function useTitle(name: string): void {
  useEffect(() => {
    document.title = `${name} · ravi`;
  }, [name]);
}

/** A second hand, for what is said relative to now. */
export function useSeconds(): number {
  const [at, setAt] = useState(() => Date.now() / 1000);
  useEffect(() => {
    const timer = setInterval(() => setAt(Date.now() / 1000), 1000);
    return () => clearInterval(timer);
  }, []);
  return at;
}

/** Do something once a second, for as long as it is wanted. */
export function useEverySecond(wanted: boolean, act: () => void): void {
  const known = useRef(act);
  known.current = act;
  useEffect(() => {
    if (!wanted) return;
    const timer = setInterval(() => known.current(), 1000);
    return () => clearInterval(timer);
  }, [wanted]);
}

export function useMedia(query: string): boolean {
  const [fits, setFits] = useState(() => matchMedia(query).matches);
  useEffect(() => {
    const list = matchMedia(query);
    const changed = () => setFits(list.matches);
    list.addEventListener("change", changed);
    return () => list.removeEventListener("change", changed);
  }, [query]);
  return fits;
}
