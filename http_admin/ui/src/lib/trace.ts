/** The events of one message from the history, prepared for display. Pure. */

import type { TraceEvent } from '../api/types';

export interface TimedEvent extends TraceEvent {
  /** Milliseconds since the first event, and since the previous one. */
  sinceFirst: number;
  sincePrevious: number;
  tone: 'good' | 'warn' | 'bad' | 'plain';
}

const TONES: Record<string, TimedEvent['tone']> = {
  acked: 'good',
  redelivered: 'warn',
  requeued: 'warn',
  nacked: 'warn',
  rejected: 'bad',
  expired: 'bad',
  dead_lettered: 'bad',
  dropped: 'bad',
  purged: 'bad',
  queue_deleted: 'bad',
  unroutable: 'bad',
};

export function timedEvents(events: readonly TraceEvent[]): TimedEvent[] {
  const inOrder = [...events].sort((a, b) => a.time_ms - b.time_ms);
  const start = inOrder[0]?.time_ms ?? 0;
  return inOrder.map((event, index) => ({
    ...event,
    sinceFirst: event.time_ms - start,
    sincePrevious: event.time_ms - (inOrder[index - 1]?.time_ms ?? start),
    tone: TONES[event.event.toLowerCase().replace(/-/g, '_')] ?? 'plain',
  }));
}

export function eventLabel(event: string): string {
  const words = event.toLowerCase().replace(/[_-]/g, ' ');
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** What happened to a message in one queue. Times are in milliseconds, null if not known. */
export interface QueueVisit {
  queue: string;
  waited: number | null;
  withConsumers: number | null;
  deliveries: number;
  /** The event that removed it; null while it is still in the queue. */
  end: string | null;
}

const DELIVERIES = new Set(['delivered', 'redelivered', 'got']);
const ENDS = new Set([
  'acked',
  'rejected',
  'nacked',
  'expired',
  'dead_lettered',
  'dropped',
  'purged',
  'queue_deleted',
]);

export function queueVisits(events: readonly TraceEvent[]): QueueVisit[] {
  const byQueue = new Map<string, TraceEvent[]>();
  for (const event of timedEvents(events)) {
    if (event.queue) byQueue.set(event.queue, [...(byQueue.get(event.queue) ?? []), event]);
  }
  return [...byQueue].map(([queue, eventsThere]) => queueVisit(queue, eventsThere));
}

function queueVisit(queue: string, events: readonly TraceEvent[]): QueueVisit {
  const enqueued = events.find((event) => event.event === 'enqueued');
  const deliveries = events.filter((event) => DELIVERIES.has(event.event));
  const first = deliveries[0];
  const end = events.find((event) => ENDS.has(event.event));
  return {
    queue,
    waited: enqueued && first ? first.time_ms - enqueued.time_ms : null,
    withConsumers:
      end && first && end.time_ms >= first.time_ms ? end.time_ms - first.time_ms : null,
    deliveries: deliveries.length,
    end: end?.event ?? null,
  };
}
