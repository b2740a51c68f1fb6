/** One message's life from top to bottom, with the time between the steps. */

import type { TraceEvent } from '../api/types';
import { count, dateTime, duration, value } from '../lib/format';
import { eventWords, legs, moments, type Leg, type Moment } from '../lib/messages';
import { Badge, Facts } from './basics';
import { DataTable, type Column } from './DataTable';

function Step({ moment }: { moment: Moment }) {
  return (
    <li class={`step step-${moment.tone}`} data-testid="trace-event">
      {moment.gap > 0 && <span class="step-gap num">{duration(moment.gap)} later</span>}
      <div class="step-body">
        <div class="step-head">
          <strong>{eventWords(moment.event)}</strong>
          {moment.queue && <span>in <code>{moment.queue}</code></span>}
          {moment.redelivered && moment.event !== 'redelivered' && <Badge tone="info">redelivered</Badge>}
          <time class="num muted" dateTime={new Date(moment.time_ms).toISOString()}>{dateTime(moment.time_ms)}.{String(moment.time_ms % 1000).padStart(3, '0')}</time>
        </div>
        <Facts items={[
          ['Consumer', moment.consumer && <code>{moment.consumer}</code>],
          ['Connection', moment.connection],
          ['User', moment.user],
          ['Detail', moment.detail === null || moment.detail === undefined ? undefined : value(moment.detail)],
        ]} />
      </div>
    </li>
  );
}

export function Timeline({ events }: { events: readonly TraceEvent[] }) {
  const steps = moments(events);
  return (
    <ol class="timeline" aria-label="What happened to the message" data-testid="timeline">
      {steps.map((moment, index) => <Step key={index} moment={moment} />)}
    </ol>
  );
}

const LEG_COLUMNS: readonly Column<Leg>[] = [
  { id: 'queue', title: 'Queue', render: (leg) => leg.queue },
  { id: 'end', title: 'Now', render: (leg) => <EndBadge end={leg.end} /> },
  { id: 'waited', title: 'Waited', numeric: true, render: (leg) => duration(leg.waited) },
  { id: 'held', title: 'With consumers', numeric: true, minor: true, render: (leg) => duration(leg.held) },
  { id: 'deliveries', title: 'Deliveries', numeric: true, minor: true, render: (leg) => count(leg.deliveries) },
];

function EndBadge({ end }: { end: string | null }) {
  if (end === null) return <Badge tone="info">still there</Badge>;
  return <Badge tone={end === 'acked' ? 'good' : 'bad'}>{eventWords(end).toLowerCase()}</Badge>;
}

/** One line per queue the message came to. */
export function Legs({ events }: { events: readonly TraceEvent[] }) {
  return <DataTable label="Queues the message came to" testid="legs" columns={LEG_COLUMNS} rows={legs(events)} rowKey={(leg) => leg.queue} />;
}
