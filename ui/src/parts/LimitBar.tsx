import { useLayoutEffect, useRef } from "preact/hooks";
import type { Bar } from "../api.ts";
import { Icon } from "./Icon.tsx";
import "./LimitBar.css";

/** The bar alone: used solid, held hatched, left empty, a tick where it warns. Widths go by `setProperty`, which the policy allows. */
export function Meter({ bar, tall = false }: { bar: Bar; tall?: boolean }) {
  const drawn = useRef<HTMLSpanElement>(null);
  useLayoutEffect(() => {
    const style = drawn.current?.style;
    style?.setProperty("--used", String(bar.used));
    style?.setProperty("--held", String(bar.held));
    style?.setProperty("--warn", String(bar.warn ?? 0));
  }, [bar.used, bar.held, bar.warn]);
  const whole = Math.round(bar.used);
  return (
    <span
      ref={drawn}
      class={tall ? "bar tall" : "bar"}
      data-tone={bar.tone}
      role="meter"
      aria-label={`${bar.title}: ${bar.text}, ${bar.share}`}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={whole}
      aria-valuetext={`${bar.text}, ${bar.share}`}
    >
      <i class="used" />
      {bar.held > 0 && <i class="held" />}
      {bar.warn !== null && <i class="mark" />}
    </span>
  );
}

export function Share({ bar }: { bar: Bar }) {
  return (
    <span class="pct">
      {(bar.tone === "near" || bar.tone === "refused") && <Icon name={bar.tone} />}
      {bar.share}
    </span>
  );
}

export function LimitBar({ bar, label }: { bar: Bar; label?: string }) {
  return (
    <span class="limit" data-tone={bar.tone}>
      <span class="kind cut" title={bar.title}>
        {label ?? bar.title}
      </span>
      <Meter bar={bar} />
      <span class="what cut" title={bar.text}>
        {bar.text}
      </span>
      <Share bar={bar} />
    </span>
  );
}
