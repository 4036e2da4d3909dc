// Draw one dashboard, `window.draw(board)`, and give what became of each panel: drawn, empty (with its words), or failed.
// `board` is a dashboard whose panels have the answers of their queries as `frames` (or `lines`), and `range`, `width`.
import { Component, useEffect, useState } from 'react';
import { createRoot } from 'react-dom/client';
import { flushSync } from 'react-dom';
import { ThemeContext, dateTime, rangeUtil } from '@grafana/data';
import { GlobalStyles, PanelChrome, PanelContextProvider } from '@grafana/ui';

import { prepared, start, theme } from './grafana.js';
import { EMPTY, KINDS } from './kinds.jsx';

const CELL = 30;
const GAP = 8;
const COLUMNS = 24;

class Guarded extends Component {
  state = { failure: null };
  static getDerivedStateFromError(failure) {
    return { failure };
  }
  render() {
    return this.state.failure === null ? this.props.children : <div data-failed={String(this.state.failure)}>{String(this.state.failure)}</div>;
  }
}

function Drawn({ panel, range, width, height }) {
  const [ready, setReady] = useState(null);
  useEffect(() => {
    prepared(panel).then(setReady, (failure) => setReady({ failure }));
  }, [panel]);
  if (panel.failed !== undefined || ready?.failure !== undefined) {
    const said = String(panel.failed ?? ready.failure);
    return <div data-failed={said}>{said}</div>;
  }
  const Kind = KINDS[panel.type];
  return ready === null ? null : <Kind panel={panel} {...ready} range={range} width={width} height={height} />;
}

function Panel({ panel, range, box }) {
  return (
    <div data-panel={panel.id} style={{ position: 'absolute', ...box }}>
      <PanelChrome title={panel.title} description={panel.description} width={box.width} height={box.height}>
        {(width, height) => (
          <Guarded>
            <Drawn panel={panel} range={range} width={width} height={height} />
          </Guarded>
        )}
      </PanelChrome>
    </div>
  );
}

function Row({ panel, box }) {
  return (
    <div data-row={panel.title} style={{ position: 'absolute', ...box, color: theme.colors.text.primary, fontWeight: 500, lineHeight: `${CELL}px` }}>
      {panel.collapsed ? '▸' : '▾'} {panel.title}
      <span style={{ color: theme.colors.text.secondary }}>{panel.collapsed ? `  (${panel.panels.length} panels)` : ''}</span>
    </div>
  );
}

function boxesOf(board) {
  const column = (board.width - GAP * (COLUMNS + 1)) / COLUMNS;
  return ({ x, y, w, h }) => ({
    left: GAP + x * (column + GAP),
    top: GAP + y * (CELL + GAP),
    width: w * column + (w - 1) * GAP,
    height: h * CELL + (h - 1) * GAP,
  });
}

function Board({ board }) {
  const boxOf = boxesOf(board);
  const bottom = Math.max(...board.panels.map(({ gridPos }) => gridPos.y + gridPos.h));
  return (
    <div id="board" style={{ position: 'relative', width: board.width, height: GAP + bottom * (CELL + GAP), background: theme.colors.background.canvas }}>
      {board.panels.map((panel) =>
        panel.type === 'row' ? (
          <Row key={panel.id} panel={panel} box={boxOf(panel.gridPos)} />
        ) : (
          <Panel key={panel.id} panel={panel} range={board.range} box={boxOf(panel.gridPos)} />
        ),
      )}
    </div>
  );
}

// Name the headings and cells of a table that show less than they have, and the columns beyond its right edge.
function cut(element) {
  const grid = element.querySelector('[role=grid]');
  if (grid === null) {
    return [];
  }
  const edge = grid.getBoundingClientRect().right + 1;
  const short = (each) => [each, ...each.querySelectorAll('*')].some((part) => part.scrollWidth > part.clientWidth + 1 && part.clientWidth > 0);
  const said = (each) => each.textContent.trim() || each.ariaColIndex;
  const headings = [...grid.querySelectorAll('[role=columnheader]')];
  const cells = [...grid.querySelectorAll('[role=gridcell]')];
  return [
    ...headings.filter((each) => each.getBoundingClientRect().right > edge).map((each) => `beyond the edge: ${said(each)}`),
    ...[...headings, ...cells].filter(short).map((each) => `cut: ${said(each)}`),
  ];
}

// Return the colour of a figure's largest letters.
function colourOf(element) {
  const letters = [...element.querySelectorAll('span')].filter((each) => each.children.length === 0 && each.textContent.trim() !== '');
  const size = (each) => parseFloat(getComputedStyle(each).fontSize);
  const largest = letters.reduce((found, each) => (found === null || size(each) > size(found) ? each : found), null);
  return largest === null ? null : getComputedStyle(largest).color;
}

// Whether a colour is none of the greys.
function coloured(colour) {
  const parts = (colour?.match(/[\d.]+/g) ?? []).slice(0, 3).map(Number);
  return Math.max(...parts) - Math.min(...parts) > 60;
}

function isZero(panel) {
  const values = (panel.frames ?? []).flatMap((frame) => frame.fields.filter(({ type }) => type === 'number').flatMap((field) => field.values));
  const known = values.filter((value) => value !== null);
  return known.length > 0 && known.every((value) => value === 0);
}

function became(panel) {
  const element = document.querySelector(`[data-panel="${panel.id}"]`);
  const colour = panel.type === 'stat' ? colourOf(element.querySelector('section > div:last-child') ?? element) : null;
  const failed = element.querySelector('[data-failed]');
  const empty = element.querySelector(`[${EMPTY}]`);
  const legends = [...element.querySelectorAll('[class*=LegendLabel], [aria-label^="VizLegend series"] button, [aria-label^="VizLegend series"]')];
  return {
    title: panel.title,
    type: panel.type,
    failed: failed?.dataset.failed ?? null,
    empty: empty?.getAttribute(EMPTY) ?? null,
    zero: isZero(panel),
    colour,
    coloured: colour !== null && coloured(colour),
    cut: cut(element),
    legends: [...new Set(legends.map((each) => each.textContent.trim()))],
  };
}

const settled = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 0))));

// Give how far apart, in ms, the points of each panel are, by its id: as many as it is wide, and no closer than `least` (`15s`).
window.intervals = (board, least) => {
  const range = { from: dateTime(board.range.from), to: dateTime(board.range.to), raw: board.range };
  const boxOf = boxesOf(board);
  const shown = board.panels.filter(({ type }) => type !== 'row');
  const of = ({ gridPos, interval, maxDataPoints }) =>
    rangeUtil.calculateInterval(range, maxDataPoints ?? Math.floor(boxOf(gridPos).width), interval ?? least).intervalMs;
  return Object.fromEntries(shown.map((panel) => [panel.id, of(panel)]));
};

const started = start();
let root;

window.draw = async (board) => {
  await started;
  root?.unmount();
  document.body.replaceChildren(Object.assign(document.createElement('div'), { id: 'root' }));
  root = createRoot(document.getElementById('root'));
  flushSync(() =>
    root.render(
      <ThemeContext.Provider value={theme}>
        <GlobalStyles />
        <PanelContextProvider value={{ eventsScope: 'board', eventBus: { subscribe: () => ({ unsubscribe() {} }), publish() {}, getStream: () => ({ subscribe: () => ({ unsubscribe() {} }), pipe: () => ({ subscribe: () => ({ unsubscribe() {} }) }) }) } }}>
          <Board board={board} />
        </PanelContextProvider>
      </ThemeContext.Provider>,
    ),
  );
  const shown = board.panels.filter(({ type }) => type !== 'row');
  while (shown.some(({ id }) => document.querySelector(`[data-panel="${id}"] [data-failed], [data-panel="${id}"] canvas, [data-panel="${id}"] [role=grid], [data-panel="${id}"] [${EMPTY}], [data-panel="${id}"] span`) === null)) {
    await settled();
  }
  for (let turn = 0; turn < 5; turn += 1) {
    await settled();
  }
  return shown.map(became);
};
