/** Line charts on uPlot. The legend is text and shows the values at the cursor, or the newest ones. */

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import uPlot from 'uplot';
import type { Details } from '../api/types';
import { bytes, compact, count, type Maybe, rate as rateText } from '../lib/format';
import { type Columns, columns, levels, rates } from '../lib/series';
import { useThemeVersion } from '../lib/theme';
import 'uplot/dist/uPlot.min.css';

export interface Line {
  label: string;
  details: Details | undefined;
  /** Number of the CSS colour variable --line-N. */
  color: number;
}

/** Steps between axis labels: whole seconds, since labels have no fractions, and powers of two for bytes. */
const SECOND_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400];
const BYTE_STEPS = Array.from({ length: 50 }, (_, power) => 2 ** power);

interface ChartProps {
  title: string;
  /** `bytes` is a rate of bytes, shown in KiB/s and so on. */
  kind: 'level' | 'rate' | 'bytes';
  lines: readonly Line[];
  height?: number;
}

function css(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function options(
  props: ChartProps,
  width: number,
  height: number,
  onHover: (index: number | null) => void,
): uPlot.Options {
  const axis = {
    stroke: css('--muted'),
    grid: { stroke: css('--grid'), width: 1 },
    ticks: { show: false },
    font: css('--chart-font'),
  };
  return {
    width,
    height,
    legend: { show: false },
    cursor: { y: false, points: { size: 7 }, drag: { x: false, y: false } },
    scales: {
      x: { range: (_plot, min, max) => timeRange(min, max) },
      y: { range: (_plot, _min, max) => [0, Math.max(1, (max ?? 0) * 1.1)] },
    },
    axes: [
      {
        ...axis,
        size: 30,
        space: 70,
        incrs: SECOND_STEPS,
        values: (_plot, ticks) => ticks.map(clock),
      },
      props.kind === 'bytes'
        ? {
            ...axis,
            size: 64,
            space: 34,
            incrs: BYTE_STEPS,
            values: (_plot, ticks) => ticks.map(bytes),
          }
        : { ...axis, size: 48, space: 34, values: (_plot, ticks) => ticks.map(compact) },
    ],
    series: [{}, ...props.lines.map((line) => seriesOptions(line, props.lines.length === 1))],
    hooks: { setCursor: [(plot) => onHover(plot.cursor.idx ?? null)] },
  };
}

/** Without two samples there is no range: the last minute is shown. */
function timeRange(min: number | null, max: number | null): [number, number] {
  const end = max ?? Date.now() / 1000;
  return min === null || min === max ? [end - 60, end] : [min, end];
}

function seriesOptions(line: Line, isOnly: boolean): uPlot.Series {
  const stroke = css(`--line-${line.color}`);
  return {
    label: line.label,
    stroke,
    width: 1.75,
    points: { show: false },
    spanGaps: true,
    fill: isOnly ? `${stroke}22` : undefined,
  };
}

function clock(seconds: number): string {
  const at = new Date(seconds * 1000);
  const two = (part: number): string => String(part).padStart(2, '0');
  const minutes = `${two(at.getHours())}:${two(at.getMinutes())}`;
  return at.getSeconds() === 0 ? minutes : `${minutes}:${two(at.getSeconds())}`;
}

function byteRateText(value: Maybe): string {
  return `${bytes(value)}/s`;
}

function useData(props: ChartProps): Columns {
  const read = props.kind === 'level' ? levels : rates;
  return useMemo(
    () => columns(props.lines.map((line) => read(line.details))),
    props.lines.map((line) => line.details),
  );
}

export function LineChart(props: ChartProps) {
  const { title, kind, lines, height = 180 } = props;
  const host = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [hover, setHover] = useState<number | null>(null);
  const theme = useThemeVersion();
  const data = useData(props);
  const shape = lines.map((line) => `${line.label}${line.color}`).join('|');

  useEffect(() => {
    const element = host.current;
    if (element === null) return undefined;
    const chart = new uPlot(
      options(props, element.clientWidth || 300, height, setHover),
      data as uPlot.AlignedData,
      element,
    );
    plot.current = chart;
    const observer = new ResizeObserver(() =>
      chart.setSize({ width: element.clientWidth, height }),
    );
    observer.observe(element);
    return () => {
      observer.disconnect();
      chart.destroy();
      plot.current = null;
    };
  }, [shape, theme, height]);

  useEffect(() => plot.current?.setData(data as uPlot.AlignedData), [data]);

  const times = data[0];
  const at = hover !== null && hover < times.length ? hover : times.length - 1;
  const show = { level: count, rate: rateText, bytes: byteRateText }[kind];
  // The server leaves out counters that are still zero.
  const texts = lines.map((line, index) => ({
    line,
    text: show(data[index + 1]?.[at] ?? (kind === 'level' ? undefined : 0)),
  }));
  const summary = texts.map(({ line, text }) => `${line.label} ${text}`).join(', ');
  return (
    <figure class="chart">
      <figcaption>
        <span class="chart-title">{title}</span>
        <span class="chart-time num">
          {hover !== null && times[at] !== undefined ? clock(times[at]) : ''}
        </span>
      </figcaption>
      <div
        ref={host}
        class="chart-canvas"
        role="img"
        aria-label={`${title}: ${times.length === 0 ? 'no samples yet' : summary}`}
      />
      <ul class="legend">
        {texts.map(({ line, text }) => (
          <li key={line.label}>
            <span class={`swatch line-${line.color}`} /> {line.label}{' '}
            <strong class="num">{text}</strong>
          </li>
        ))}
      </ul>
    </figure>
  );
}
