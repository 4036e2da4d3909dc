import { useEffect, useState } from "preact/hooks";
import type { components } from "../schema.d.ts";
import { useGet } from "../hooks.ts";

export type Tried = components["schemas"]["Tried"];

interface Trying {
  /** Whether the value is one, and another than there is. */
  ready: boolean;
  /** Whether the server was not heard yet. */
  pending: boolean;
  tried: Tried | null;
}

/** Ask the server what a value that is typed would do: the page itself knows neither units nor limits. */
export function useTried(path: string | null, asked: Record<string, string>, before: string): Trying {
  const typed = asked.value ?? "";
  const wanted = path !== null && typed.trim() !== "" && typed.trim() !== before;
  const [settled, setSettled] = useState<string | null>(null);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(typed), 120);
    return () => clearTimeout(timer);
  }, [typed]);
  const { data, error } = useGet<Tried>(wanted && settled === typed ? `${path}?${new URLSearchParams(asked)}` : null);
  const tried = wanted && data?.typed === typed ? data : error !== null && wanted ? { typed, error, is_same: false, refuses: "" } : null;
  return { ready: tried !== null && tried.error === "" && !tried.is_same, pending: wanted && tried === null, tried };
}

/** What a value would do, below the field in which it is typed. */
export function Would({ tried }: { tried: Tried | null }) {
  if (tried === null) return null;
  if (tried.error !== "") return <p class="said-no" role="alert">{tried.error}</p>;
  if (tried.is_same) return <p class="dim">That is what it is now.</p>;
  return tried.refuses === "" ? null : <p class="warned" role="status">{tried.refuses}</p>;
}
