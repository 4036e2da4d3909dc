// One component for each kind of panel. What Grafana keeps inside its application (logs, alerts, heat maps) is drawn plainly.
import { useMemo } from 'react';
import { FieldType, dateTime, dateTimeFormat, getFieldDisplayValues, getDisplayProcessor, formattedValueToString } from '@grafana/data';
import { BigValue, TimeSeries } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';

import { theme } from './grafana.js';

export const EMPTY = 'data-empty';

function Nothing({ panel, height }) {
  const said = panel.fieldConfig?.defaults?.noValue ?? 'No data';
  return (
    <div {...{ [EMPTY]: said }} style={{ height, display: 'flex', alignItems: 'center', justifyContent: 'center', color: theme.colors.text.secondary }}>
      {said}
    </div>
  );
}

const hasValues = (frames) => frames.some((frame) => frame.fields.some((field) => field.type === FieldType.number && field.values.some(Number.isFinite)));

function Stat({ panel, data, fieldConfig, width, height }) {
  const shown = getFieldDisplayValues({
    fieldConfig,
    data,
    theme,
    timeZone: 'utc',
    replaceVariables: (text) => text,
    reduceOptions: { values: false, ...panel.options.reduceOptions },
  });
  const wide = width / shown.length;
  return (
    <div style={{ display: 'flex' }} {...(hasValues(data) ? {} : { [EMPTY]: shown.map((each) => each.display.text).join() })}>
      {shown.map((each, place) => (
        <BigValue
          key={place}
          value={each.display}
          width={wide}
          height={height}
          theme={theme}
          colorMode={panel.options.colorMode}
          graphMode={panel.options.graphMode}
          textMode={panel.options.textMode}
          justifyMode={panel.options.justifyMode}
        />
      ))}
    </div>
  );
}

function Graph({ panel, data, width, height, range }) {
  const timeRange = useMemo(() => ({ from: dateTime(range.from), to: dateTime(range.to), raw: range }), [range]);
  if (!hasValues(data)) {
    return <Nothing panel={panel} height={height} />;
  }
  return <TimeSeries frames={data} width={width} height={height} timeRange={timeRange} timeZone="utc" legend={panel.options.legend} options={panel.options} />;
}

function Table({ panel, data, width, height }) {
  const [frame] = data;
  if (frame === undefined || frame.length === 0) {
    return <Nothing panel={panel} height={height} />;
  }
  return (
    <TableNG
      data={frame}
      width={width}
      height={height}
      sortBy={panel.options.sortBy}
      cellHeight={panel.options.cellHeight}
      noValue={panel.fieldConfig.defaults.noValue}
      enableVirtualization={false}
    />
  );
}

function Heatmap({ panel, data, width, height }) {
  if (!hasValues(data)) {
    return <Nothing panel={panel} height={height} />;
  }
  const rows = data.map((frame) => frame.fields[1]);
  const most = Math.max(...rows.flatMap((field) => field.values.filter(Number.isFinite)));
  const label = getDisplayProcessor({ field: { config: { unit: panel.fieldConfig.defaults.unit }, type: FieldType.number }, theme });
  return (
    <div style={{ width, height, display: 'flex', flexDirection: 'column-reverse' }}>
      {rows.map((field, place) => (
        <div key={place} style={{ flex: 1, display: 'flex', alignItems: 'center', gap: 8 }}>
          <span style={{ width: 60, fontSize: 11, textAlign: 'right' }}>{formattedValueToString(label(Number(field.config.displayNameFromDS)))}</span>
          {field.values.map((value, at) => (
            <span key={at} style={{ flex: 1, alignSelf: 'stretch', background: '#ff9830', opacity: value > 0 ? 0.15 + (0.85 * value) / most : 0 }} />
          ))}
        </div>
      ))}
    </div>
  );
}

function Lines({ panel, height }) {
  if (!panel.lines?.length) {
    return <Nothing panel={panel} height={height} />;
  }
  return (
    <div style={{ height, overflow: 'hidden', fontSize: 12, fontFamily: theme.typography.fontFamilyMonospace, padding: 8 }}>
      {panel.lines.map(({ at, text }, place) => (
        <div key={place} style={{ whiteSpace: 'nowrap', textOverflow: 'ellipsis', overflow: 'hidden' }}>
          <span style={{ color: theme.colors.text.secondary }}>{at === undefined ? '' : dateTimeFormat(at, { timeZone: 'utc' })} </span>
          {text}
        </div>
      ))}
    </div>
  );
}

export const KINDS = { stat: Stat, timeseries: Graph, table: Table, heatmap: Heatmap, logs: Lines, alertlist: Lines, traces: Lines };
