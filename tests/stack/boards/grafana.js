// Set up Grafana's packages as its own application does: theme, transformations, and the settings that a field may have.
import {
  FieldConfigOptionsRegistry,
  applyFieldOverrides,
  cacheFieldDisplayNames,
  createTheme,
  standardTransformers,
  standardTransformersRegistry,
  toDataFrame,
  transformDataFrame,
} from '@grafana/data';
import { initPluginTranslations } from '@grafana/i18n';

export const theme = createTheme({ colors: { mode: 'dark' } });

// What the graph's plugin sets where a panel says nothing.
const GRAPH_DEFAULTS = {
  drawStyle: 'line',
  lineInterpolation: 'linear',
  lineWidth: 1,
  fillOpacity: 0,
  gradientMode: 'none',
  spanNulls: false,
  insertNulls: false,
  showPoints: 'auto',
  pointSize: 5,
  stacking: { mode: 'none', group: 'A' },
  axisPlacement: 'auto',
  axisLabel: '',
  axisColorMode: 'text',
  axisBorderShow: false,
  axisCenteredZero: false,
  scaleDistribution: { type: 'linear' },
  hideFrom: { legend: false, tooltip: false, viz: false },
  thresholdsStyle: { mode: 'off' },
  barAlignment: 0,
  barWidthFactor: 0.6,
};
const STANDARD = ['unit', 'min', 'max', 'decimals', 'displayName', 'color', 'thresholds', 'mappings', 'links', 'actions', 'noValue', 'filterable'];

export async function start() {
  await initPluginTranslations('boards');
  const known = new Map(Object.values(standardTransformers).map((each) => [each.id, each]));  // some stand there twice
  standardTransformersRegistry.setInit(() =>
    [...known.values()].map((each) => ({ id: each.id, name: each.name, transformation: () => Promise.resolve(each), editor: () => null })),
  );
}

function setting(id, path, isCustom) {
  return { id, path, isCustom, name: id, category: [], editor: () => null, override: () => null, process: (value) => value, shouldApply: () => true };
}

// A field's settings are applied only where they are known: those of every panel, and this panel's own.
function registry(fieldConfig) {
  const named = [...Object.keys(GRAPH_DEFAULTS), ...Object.keys(fieldConfig.defaults.custom ?? {})];
  for (const override of fieldConfig.overrides) {
    named.push(...override.properties.map((each) => each.id).filter((id) => id.startsWith('custom.')).map((id) => id.slice('custom.'.length)));
  }
  const own = [...new Set(named)].map((name) => setting(`custom.${name}`, name, true));
  return new FieldConfigOptionsRegistry(() => [...STANDARD.map((id) => setting(id, id, false)), ...own]);
}

function configOf(panel) {
  const said = panel.fieldConfig ?? {};
  const graph = panel.type === 'timeseries';
  const defaults = { color: { mode: graph ? 'palette-classic' : 'thresholds' }, ...(said.defaults ?? {}) };
  if (graph) {
    defaults.custom = { ...GRAPH_DEFAULTS, ...(defaults.custom ?? {}) };
  }
  return { defaults, overrides: said.overrides ?? [] };
}

// Give the frames of a panel as its plugin gets them: transformed, and with every field's settings.
export function prepared(panel) {
  const fieldConfig = configOf(panel);
  const frames = (panel.frames ?? []).map((frame) => toDataFrame(frame));
  const apply = (transformed) => {
    const data = applyFieldOverrides({
      data: transformed,
      fieldConfig,
      fieldConfigRegistry: registry(fieldConfig),
      replaceVariables: (text) => text,
      theme,
      timeZone: 'utc',
    });
    cacheFieldDisplayNames(data);
    return data;
  };
  return new Promise((done, failed) =>
    transformDataFrame(panel.transformations ?? [], frames).subscribe({ next: (data) => done({ data: apply(data), fieldConfig }), error: failed }),
  );
}
