/** The history of one message: its events from top to bottom, and a line for each queue. */

import type { TraceEvent } from '../api/types';
import { count, dateTime, duration, value } from '../lib/format';
import {
  eventLabel,
  type QueueVisit,
  queueVisits,
  type TimedEvent,
  timedEvents,
} from '../lib/trace';
import { Badge } from './badge';
import { type Column, DataTable } from './data-table';
import { KeyValueList } from './key-value-list';

function TimelineEvent({ event }: { event: TimedEvent }) {
  return (
    <li class={`step step-${event.tone}`} data-testid="trace-event">
      {event.sincePrevious > 0 && (
        <span class="step-gap num">{duration(event.sincePrevious)} later</span>
      )}
      <div class="step-body">
        <div class="step-head">
          <strong>{eventLabel(event.event)}</strong>
          {event.queue && (
            <span>
              in <code>{event.queue}</code>
            </span>
          )}
          {event.redelivered && event.event !== 'redelivered' && (
            <Badge tone="info">redelivered</Badge>
          )}
          <time class="num muted" dateTime={new Date(event.time_ms).toISOString()}>
            {dateTime(event.time_ms)}.{String(event.time_ms % 1000).padStart(3, '0')}
          </time>
        </div>
        <KeyValueList
          items={[
            ['Consumer', event.consumer && <code>{event.consumer}</code>],
            ['Connection', event.connection],
            ['User', event.user],
            ['Detail', event.detail === null ? undefined : value(event.detail)],
          ]}
        />
      </div>
    </li>
  );
}

export function MessageTimeline({ events }: { events: readonly TraceEvent[] }) {
  return (
    <ol class="timeline" aria-label="Timeline of the message" data-testid="timeline">
      {timedEvents(events).map((event, index) => (
        <TimelineEvent key={index} event={event} />
      ))}
    </ol>
  );
}

const VISIT_COLUMNS: readonly Column<QueueVisit>[] = [
  { id: 'queue', title: 'Queue', render: (visit) => visit.queue },
  { id: 'end', title: 'State', render: (visit) => <EndBadge end={visit.end} /> },
  { id: 'waited', title: 'Waited', numeric: true, render: (visit) => duration(visit.waited) },
  {
    id: 'with-consumers',
    title: 'With consumers',
    numeric: true,
    minor: true,
    render: (visit) => duration(visit.withConsumers),
  },
  {
    id: 'deliveries',
    title: 'Deliveries',
    numeric: true,
    minor: true,
    render: (visit) => count(visit.deliveries),
  },
];

function EndBadge({ end }: { end: string | null }) {
  if (end === null) return <Badge tone="info">still in the queue</Badge>;
  return <Badge tone={end === 'acked' ? 'good' : 'bad'}>{eventLabel(end).toLowerCase()}</Badge>;
}

export function QueueVisitTable({ events }: { events: readonly TraceEvent[] }) {
  return (
    <DataTable
      label="Queues of the message"
      testid="queue-visits"
      columns={VISIT_COLUMNS}
      rows={queueVisits(events)}
      rowKey={(visit) => visit.queue}
    />
  );
}
