import type { Curve } from "../../api.ts";

const DASHES = ["", "5 2", "1 3", "7 2 1 2"];
const TOP = 10;
const BOTTOM = 96;

/** Where a share of a limit is drawn: 100 at the top, 0 at the bottom. */
const y = (share: number): number => BOTTOM - (Math.min(share, 104) / 100) * (BOTTOM - TOP);

function steps(curve: Curve, length: number): string {
  let path = "";
  for (const [at, share] of curve.points) {
    const x = ((at / length) * 100).toFixed(2);
    path += path === "" ? `M${x} ${y(share).toFixed(2)}` : `H${x}V${y(share).toFixed(2)}`;
  }
  return path;
}

/** The share of each limit over the run's time, on the waterfall's scale. */
export function Curves({ curves, length }: { curves: readonly Curve[]; length: number }) {
  const drawn = curves.slice(0, 4);
  return (
    <>
      <div class="curve-names">
        <p>Share of each limit over time, dotted where it warns</p>
        <ul>
          {drawn.map((curve, at) => (
            <li key={curve.title}>
              <svg viewBox="0 0 24 8" aria-hidden="true">
                <path class={`c-line c-${curve.tone}`} d="M0 4H24" stroke-dasharray={DASHES[at]} />
              </svg>
              <span class="cut" title={curve.title}>
                {curve.title}
              </span>
              <span class="fig">{curve.share}</span>
            </li>
          ))}
        </ul>
      </div>
      <div class="curves">
        <svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img" aria-label={drawn.map((curve) => `${curve.title} ends at ${curve.share}`).join(", ")}>
          <path class="c-grid" d={`M0 ${BOTTOM}H100M0 ${TOP}H100M25 0V100M50 0V100M75 0V100`} />
          <path class="c-warn" d={`M0 ${y(80)}H100`} />
          {drawn.map((curve, at) => (
            <path key={curve.title} class={`c-line c-${curve.tone}`} d={steps(curve, length)} stroke-dasharray={DASHES[at]} />
          ))}
        </svg>
        <span class="y y-100">100</span>
        <span class="y y-0">0 %</span>
      </div>
    </>
  );
}
