/** Sample series as the API gives them (newest first, counters cumulative) turned into chart columns. */

import type { Details, Sample } from '../api/types';

export type Columns = [number[], ...(number | null)[][]];

export interface Range {
  id: string;
  label: string;
  age: number;
  incr: number;
}

export const RANGES: readonly Range[] = [
  { id: '1m', label: '1 min', age: 60, incr: 5 },
  { id: '10m', label: '10 min', age: 600, incr: 5 },
  { id: '1h', label: '1 h', age: 3600, incr: 60 },
  { id: '8h', label: '8 h', age: 28800, incr: 600 },
];

/** Of one queue or virtual host the broker remembers ten minutes; only its totals last for hours. */
export const SHORT_RANGES = RANGES.slice(0, 2);

/** The range of this name; the longest there is, where a longer one was chosen elsewhere. */
export function rangeOf(id: string | undefined, among: readonly Range[] = RANGES): Range {
  const known = RANGES.some((range) => range.id === id);
  return among.find((range) => range.id === id) ?? (among[known ? among.length - 1 : 0] as Range);
}

export function sampleQuery(range: Range): string {
  const { age, incr } = range;
  return `lengths_age=${age}&lengths_incr=${incr}&msg_rates_age=${age}&msg_rates_incr=${incr}`;
}

function ascending(samples: readonly Sample[]): Sample[] {
  return [...samples].sort((a, b) => a.timestamp - b.timestamp);
}

export function levels(details: Details | undefined): Map<number, number> {
  return new Map(ascending(details?.samples ?? []).map((at) => [at.timestamp, at.sample]));
}

/** Differences of a counter per second; a counter that fell (restart) counts as zero. */
export function rates(details: Details | undefined): Map<number, number> {
  const points = ascending(details?.samples ?? []);
  const found = new Map<number, number>();
  for (let at = 1; at < points.length; at += 1) {
    const now = points[at] as Sample;
    const before = points[at - 1] as Sample;
    const seconds = (now.timestamp - before.timestamp) / 1000;
    if (seconds > 0) found.set(now.timestamp, Math.max(0, (now.sample - before.sample) / seconds));
  }
  return found;
}

/** Joins series on their timestamps; x in seconds, as the chart wants it. */
export function columns(series: readonly Map<number, number>[]): Columns {
  const times = [...new Set(series.flatMap((one) => [...one.keys()]))].sort((a, b) => a - b);
  return [times.map((time) => time / 1000), ...series.map((one) => times.map((time) => one.get(time) ?? null))];
}

/** Points of a small line in a `width` x `height` box; empty when there is nothing to draw. */
export function sparkPoints(values: readonly number[], width: number, height: number): string {
  if (values.length < 2) return '';
  const top = Math.max(...values, 1);
  const step = width / (values.length - 1);
  return values
    .map((at, index) => `${round(index * step)},${round(height - 1 - (at / top) * (height - 2))}`)
    .join(' ');
}

function round(number: number): number {
  return Math.round(number * 10) / 10;
}
