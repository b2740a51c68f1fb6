/** Message bodies and life stories, prepared for showing. Pure. */

import type { Message, Queue, Table, TraceEvent } from '../api/types';

export interface Body {
  text: string;
  kind: 'JSON' | 'text' | 'binary' | 'empty';
}

const BYTES_PER_LINE = 16;
const HEX_LINES = 256;

export function bodyOf(payload: string, encoding: string): Body {
  if (payload === '') return { text: '', kind: 'empty' };
  if (encoding === 'base64') return { text: hexDump(fromBase64(payload)), kind: 'binary' };
  const first = payload.trimStart().charAt(0);
  if (first === '{' || first === '[') {
    try {
      return { text: JSON.stringify(JSON.parse(payload), null, 2), kind: 'JSON' };
    } catch {
      // Looks like JSON, is not: shown as it came.
    }
  }
  return { text: payload, kind: 'text' };
}

function fromBase64(text: string): Uint8Array {
  try {
    return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  } catch {
    return new TextEncoder().encode(text);
  }
}

export function hexDump(data: Uint8Array): string {
  const lines: string[] = [];
  for (let at = 0; at < data.length && lines.length < HEX_LINES; at += BYTES_PER_LINE) {
    const row = [...data.slice(at, at + BYTES_PER_LINE)];
    const hex = row.map((byte) => byte.toString(16).padStart(2, '0')).join(' ');
    const seen = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : '·')).join('');
    lines.push(`${at.toString(16).padStart(6, '0')}  ${hex.padEnd(BYTES_PER_LINE * 3 - 1)}  ${seen}`);
  }
  const shown = HEX_LINES * BYTES_PER_LINE;
  if (data.length > shown) lines.push(`… ${data.length - shown} bytes more`);
  return lines.join('\n');
}

/** RabbitMQ writes an empty property table as `[]`. */
export function propertiesOf(message: Pick<Message, 'properties'>): Table {
  return Array.isArray(message.properties) ? {} : message.properties;
}

/** Where rejected messages go, by the queue's own argument or else by policy; undefined where they are lost. */
export function deadLetterExchange(queue: Pick<Queue, 'arguments' | 'effective_policy_definition'>): string | undefined {
  const found = queue.arguments['x-dead-letter-exchange'] ?? queue.effective_policy_definition?.['dead-letter-exchange'];
  return typeof found === 'string' ? found : undefined;
}

export interface Moment extends TraceEvent {
  /** Time since the first event, and since the one before. */
  since: number;
  gap: number;
  tone: 'good' | 'warn' | 'bad' | 'plain';
}

const TONES: Record<string, Moment['tone']> = {
  acked: 'good', enqueued: 'plain', published: 'plain', delivered: 'plain', got: 'plain',
  redelivered: 'warn', requeued: 'warn', nacked: 'warn', rejected: 'bad', expired: 'bad',
  dead_lettered: 'bad', dropped: 'bad', purged: 'bad', queue_deleted: 'bad', unroutable: 'bad',
};

export function moments(events: readonly TraceEvent[]): Moment[] {
  const inOrder = [...events].sort((a, b) => a.time_ms - b.time_ms);
  const start = inOrder[0]?.time_ms ?? 0;
  return inOrder.map((event, index) => ({
    ...event,
    since: event.time_ms - start,
    gap: event.time_ms - (inOrder[index - 1]?.time_ms ?? start),
    tone: TONES[event.event.toLowerCase().replace(/-/g, '_')] ?? 'plain',
  }));
}

export function eventWords(event: string): string {
  const words = event.toLowerCase().replace(/[_-]/g, ' ');
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** How a message fared in one queue: how long it waited, how long consumers had it, how it ended. */
export interface Leg {
  queue: string;
  waited: number | null;
  held: number | null;
  deliveries: number;
  end: string | null;
}

const HANDED = new Set(['delivered', 'redelivered', 'got']);
const ENDS = new Set(['acked', 'rejected', 'nacked', 'expired', 'dead_lettered', 'dropped', 'purged', 'queue_deleted']);

export function legs(events: readonly TraceEvent[]): Leg[] {
  const byQueue = new Map<string, TraceEvent[]>();
  for (const event of moments(events)) {
    if (event.queue) byQueue.set(event.queue, [...(byQueue.get(event.queue) ?? []), event]);
  }
  return [...byQueue].map(([queue, own]) => leg(queue, own));
}

function leg(queue: string, own: readonly TraceEvent[]): Leg {
  const entered = own.find((event) => event.event === 'enqueued');
  const handed = own.filter((event) => HANDED.has(event.event));
  const first = handed[0];
  const end = own.find((event) => ENDS.has(event.event));
  return {
    queue,
    waited: entered && first ? first.time_ms - entered.time_ms : null,
    held: end && first && end.time_ms >= first.time_ms ? end.time_ms - first.time_ms : null,
    deliveries: handed.length,
    end: end?.event ?? null,
  };
}
