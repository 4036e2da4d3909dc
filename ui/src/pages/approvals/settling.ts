import type { Asked } from "../../api.ts";
import { useEverySecond, useSeconds } from "../../hooks.ts";

const SHOWN_WITHIN_S = 30;

/** Look again while an approved call has not run yet, or what it gave is not in the store yet. */
export function useSettling(asked: Asked | undefined, again: () => void): void {
  const at = useSeconds();
  const ask = asked?.ask;
  const isFresh = at - (ask?.answered_at ?? 0) < SHOWN_WITHIN_S;
  useEverySecond(ask?.tone === "ok" && (!ask.is_over || (asked?.ran == null && ask.op_id !== null && isFresh)), again);
}
