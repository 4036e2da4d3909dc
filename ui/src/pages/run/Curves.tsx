import type { Curve, Tone } from "../../api.ts";

const DASHES = ["", "5 2", "1 3", "7 2 1 2"];
const TOP = 10;
const BOTTOM = 96;
const FEW = 24;

/** Where a share of a limit is drawn: 100 at the top, 0 at the bottom. */
const y = (share: number): number => BOTTOM - (Math.min(share, 104) / 100) * (BOTTOM - TOP);

const toneOf = (share: number, warn: number | null): Tone => (share >= 100 ? "refused" : warn !== null && share >= warn ? "near" : "ok");

/** A curve as steps until the run's end, cut where it passes the warning and the limit, each piece in the colour of what it is then. */
function pieces(curve: Curve, length: number): (readonly [Tone, string])[] {
  const found: [Tone, string][] = [];
  for (const [at, share] of curve.points) {
    const x = ((at / length) * 100).toFixed(2);
    const tone = toneOf(share, curve.warn);
    const last = found.at(-1);
    if (!last) found.push([tone, `M${x} ${y(share).toFixed(2)}`]);
    else {
      last[1] += `H${x}V${y(share).toFixed(2)}`;
      if (tone !== last[0]) found.push([tone, `M${x} ${y(share).toFixed(2)}`]);
    }
  }
  const last = found.at(-1);
  if (last) last[1] += "H100";
  return found;
}

/** The share of each limit over the run's time, on the waterfall's scale; where few points are known, each is marked. */
export function Curves({ curves, length, ticks }: { curves: readonly Curve[]; length: number; ticks: readonly (readonly [number, string])[] }) {
  const drawn = curves.slice(0, 4);
  const warns = [...new Set(drawn.flatMap(({ warn }) => (warn === null || warn >= 100 ? [] : [warn])))].sort((a, b) => b - a);
  const isFew = drawn.reduce((sum, { points }) => sum + points.length, 0) <= FEW;
  return (
    <>
      <div class="curve-names">
        <p>Share of each limit over time{warns.length > 0 && `, dotted where it warns: ${warns.map((each) => `${each} %`).join(", ")}`}</p>
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
          <path class="c-grid" d={`M0 ${BOTTOM}H100M0 ${TOP}H100${ticks.slice(1).map(([share]) => `M${share.toFixed(2)} 0V100`).join("")}`} />
          {warns.map((each) => (
            <path key={each} class="c-warn" d={`M0 ${y(each).toFixed(2)}H100`} />
          ))}
          {drawn.flatMap((curve, at) =>
            pieces(curve, length).map(([tone, path], place) => (
              <path key={`${curve.title}/${place}`} class={`c-line c-${tone}`} d={path} stroke-dasharray={DASHES[at]} />
            )),
          )}
        </svg>
        {isFew &&
          drawn.flatMap((curve) =>
            curve.points.map(([at, share], place) => (
              <i key={`${curve.title}/${place}`} class={`point c-${toneOf(share, curve.warn)}`} style={{ left: `${Math.min(100, (at / length) * 100)}%`, top: `${y(share)}%` }} />
            )),
          )}
        <span class="y y-100">100</span>
        <span class="y y-0">0 %</span>
      </div>
    </>
  );
}
