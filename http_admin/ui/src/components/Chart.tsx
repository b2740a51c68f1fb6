/** Line charts on uPlot, with a legend that is text: it shows the hovered or the newest values. */

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import type { Details } from '../api/types';
import { columns, levels, rates, sparkPoints, type Columns } from '../lib/series';
import { bytes, compact, count, rate as rateText, type Maybe } from '../lib/format';
import { useThemeVersion } from '../lib/hooks';

export interface Line {
  label: string;
  details: Details | undefined;
  /** Number of the CSS colour variable --line-N. */
  color: number;
}

/** Steps between marks: whole seconds, since labels have no fractions, and powers of two for octets. */
const SECOND_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400];
const OCTET_STEPS = Array.from({ length: 50 }, (_, power) => 2 ** power);

interface ChartProps {
  title: string;
  /** Octets are a rate, too, shown in KiB and so on. */
  kind: 'level' | 'rate' | 'octets';
  lines: readonly Line[];
  height?: number;
}

function css(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function options(props: ChartProps, width: number, height: number, onHover: (index: number | null) => void): uPlot.Options {
  const axis = { stroke: css('--muted'), grid: { stroke: css('--grid'), width: 1 }, ticks: { show: false }, font: css('--chart-font') };
  return {
    width,
    height,
    legend: { show: false },
    cursor: { y: false, points: { size: 7 }, drag: { x: false, y: false } },
    scales: { x: { range: (_plot, min, max) => span(min, max) }, y: { range: (_plot, _min, max) => [0, Math.max(1, (max ?? 0) * 1.1)] } },
    axes: [
      { ...axis, size: 30, space: 70, incrs: SECOND_STEPS, values: (_plot, ticks) => ticks.map(clock) },
      props.kind === 'octets'
        ? { ...axis, size: 64, space: 34, incrs: OCTET_STEPS, values: (_plot, ticks) => ticks.map(bytes) }
        : { ...axis, size: 48, space: 34, values: (_plot, ticks) => ticks.map(compact) },
    ],
    series: [{}, ...props.lines.map((line) => lineStyle(line, props.lines.length === 1))],
    hooks: { setCursor: [(plot) => onHover(plot.cursor.idx ?? null)] },
  };
}

/** No sample, or a single one, has no width of its own: the minute before it is shown. */
function span(min: number | null, max: number | null): [number, number] {
  const end = max ?? Date.now() / 1000;
  return min === null || min === max ? [end - 60, end] : [min, end];
}

function lineStyle(line: Line, alone: boolean): uPlot.Series {
  const stroke = css(`--line-${line.color}`);
  return { label: line.label, stroke, width: 1.75, points: { show: false }, spanGaps: true, fill: alone ? `${stroke}22` : undefined };
}

function clock(seconds: number): string {
  const at = new Date(seconds * 1000);
  const two = (part: number): string => String(part).padStart(2, '0');
  const minutes = `${two(at.getHours())}:${two(at.getMinutes())}`;
  return at.getSeconds() === 0 ? minutes : `${minutes}:${two(at.getSeconds())}`;
}

function octetsText(value: Maybe): string {
  return `${bytes(value)}/s`;
}

function useData(props: ChartProps): Columns {
  const read = props.kind === 'level' ? levels : rates;
  return useMemo(() => columns(props.lines.map((line) => read(line.details))), props.lines.map((line) => line.details));
}

export function Chart(props: ChartProps) {
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
    const made = new uPlot(options(props, element.clientWidth || 300, height, setHover), data as uPlot.AlignedData, element);
    plot.current = made;
    const watch = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height }));
    watch.observe(element);
    return () => {
      watch.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape, theme, height]);

  useEffect(() => plot.current?.setData(data as uPlot.AlignedData), [data]);

  const times = data[0];
  const at = hover !== null && hover < times.length ? hover : times.length - 1;
  const show = { level: count, rate: rateText, octets: octetsText }[kind];
  // A counter nobody has touched yet is left out by the server: that is a rate of zero.
  const texts = lines.map((line, index) => ({ line, text: show(data[index + 1]?.[at] ?? (kind === 'level' ? undefined : 0)) }));
  const spoken = texts.map(({ line, text }) => `${line.label} ${text}`).join(', ');
  return (
    <figure class="chart">
      <figcaption>
        <span class="chart-title">{title}</span>
        <span class="chart-time num">{hover !== null && times[at] !== undefined ? clock(times[at]) : ''}</span>
      </figcaption>
      <div ref={host} class="chart-canvas" role="img" aria-label={`${title}: ${times.length === 0 ? 'no samples yet' : spoken}`} />
      <ul class="legend">
        {texts.map(({ line, text }) => (
          <li key={line.label}>
            <span class={`swatch line-${line.color}`} /> {line.label} <strong class="num">{text}</strong>
          </li>
        ))}
      </ul>
    </figure>
  );
}

/** A depth curve beside its number; the number says it, so the curve is hidden from readers. */
export function Sparkline({ values, width = 88, height = 24 }: { values: readonly number[]; width?: number; height?: number }) {
  const points = sparkPoints(values, width, height);
  return (
    <svg class="spark" width={width} height={height} viewBox={`0 0 ${width} ${height}`} aria-hidden="true" focusable="false">
      {points !== '' && <polyline points={points} />}
    </svg>
  );
}
