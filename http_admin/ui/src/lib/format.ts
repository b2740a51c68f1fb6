/** Numbers, sizes and times as text. Pure; null, undefined and NaN give a dash. */

export type Maybe = number | null | undefined;

const whole = new Intl.NumberFormat('en-GB', { maximumFractionDigits: 0 });
const oneDigit = new Intl.NumberFormat('en-GB', { maximumFractionDigits: 1 });
const NONE = '–';

function known(value: Maybe): value is number {
  return typeof value === 'number' && Number.isFinite(value);
}

export function count(value: Maybe): string {
  return known(value) ? whole.format(value) : NONE;
}

/** 1234 -> 1.2k, for short labels. */
export function compact(value: Maybe): string {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  if (size < 1000) return oneDigit.format(value);
  if (size < 1e6) return `${oneDigit.format(value / 1e3)}k`;
  if (size < 1e9) return `${oneDigit.format(value / 1e6)}M`;
  return `${oneDigit.format(value / 1e9)}G`;
}

export function rate(value: Maybe): string {
  if (!known(value)) return NONE;
  return `${Math.abs(value) < 10 ? oneDigit.format(value) : whole.format(value)}/s`;
}

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'] as const;

export function bytes(value: Maybe): string {
  if (!known(value)) return NONE;
  let amount = value;
  let unit = 0;
  while (Math.abs(amount) >= 1024 && unit < UNITS.length - 1) {
    amount /= 1024;
    unit += 1;
  }
  return `${oneDigit.format(amount)} ${UNITS[unit]}`;
}

/** At most two units: "3 min 4 s". */
export function duration(ms: Maybe): string {
  if (!known(ms)) return NONE;
  if (ms < 1000) return `${whole.format(Math.max(0, ms))} ms`;
  if (ms < 10_000) return `${oneDigit.format(ms / 1000)} s`;
  const seconds = Math.floor(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return pair(minutes, 'min', seconds % 60, 's');
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return pair(hours, 'h', minutes % 60, 'min');
  return pair(Math.floor(hours / 24), 'd', hours % 24, 'h');
}

function pair(big: number, bigUnit: string, small: number, smallUnit: string): string {
  return small === 0 ? `${big} ${bigUnit}` : `${big} ${bigUnit} ${small} ${smallUnit}`;
}

export function dateTime(ms: Maybe): string {
  if (!known(ms)) return NONE;
  const at = new Date(ms);
  const two = (part: number): string => String(part).padStart(2, '0');
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function plural(amount: Maybe, one: string, many = `${one}s`): string {
  return `${count(amount)} ${amount === 1 ? one : many}`;
}

export function percent(part: Maybe, total: Maybe): string {
  if (!known(part) || !known(total) || total <= 0) return NONE;
  return `${oneDigit.format((part / total) * 100)} %`;
}

/** An argument or property value as one line of text. */
export function value(of: unknown): string {
  if (of === null || of === undefined) return NONE;
  if (typeof of === 'string') return of;
  return JSON.stringify(of);
}

/** The name to show: that of the default exchange is empty. */
export function exchangeName(name: string): string {
  return name === '' ? '(default)' : name;
}
