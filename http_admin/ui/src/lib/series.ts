/** Turns samples of the API (newest first, counters cumulative) into columns for charts. Pure. */

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

/** The broker keeps ten minutes of samples per queue and virtual host, and hours of its totals. */
export const SHORT_RANGES = RANGES.slice(0, 2);

/** The range with this id; if it is longer than those available, the longest of them. */
export function rangeOf(id: string | undefined, available: readonly Range[] = RANGES): Range {
  const isKnown = RANGES.some((range) => range.id === id);
  const index = isKnown ? available.length - 1 : 0;
  return available.find((range) => range.id === id) ?? (available[index] as Range);
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

/** Differences of a counter per second; zero where it fell, as after a restart. */
export function rates(details: Details | undefined): Map<number, number> {
  const points = ascending(details?.samples ?? []);
  const perSecond = new Map<number, number>();
  for (let at = 1; at < points.length; at += 1) {
    const now = points[at] as Sample;
    const before = points[at - 1] as Sample;
    const seconds = (now.timestamp - before.timestamp) / 1000;
    if (seconds > 0)
      perSecond.set(now.timestamp, Math.max(0, (now.sample - before.sample) / seconds));
  }
  return perSecond;
}

/** Joins series on their timestamps; the first column is the time in seconds. */
export function columns(series: readonly Map<number, number>[]): Columns {
  const times = [...new Set(series.flatMap((values) => [...values.keys()]))].sort((a, b) => a - b);
  return [
    times.map((time) => time / 1000),
    ...series.map((values) => times.map((time) => values.get(time) ?? null)),
  ];
}

/** The points of a line in a box of `width` x `height`; empty if there are fewer than two. */
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
