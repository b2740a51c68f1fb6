/** The two charts that the overview and a queue share, with the choice of their range. */

import type { MessageStats, QueueTotals } from '../api/types';
import { RANGES, type Range } from '../lib/series';
import { Card, Choice } from './basics';
import { Chart, type Line } from './Chart';

export function depthLines(totals: QueueTotals): Line[] {
  return [
    { label: 'Ready', details: totals.messages_ready_details, color: 1 },
    { label: 'Unacknowledged', details: totals.messages_unacknowledged_details, color: 2 },
  ];
}

/** Always the three that matter; the others only where something happened. */
export function rateLines(stats: MessageStats | undefined): Line[] {
  const extra: Line[] = [
    { label: 'Redelivered', details: stats?.redeliver_details, color: 5 },
    { label: 'Unroutable', details: stats?.drop_unroutable_details ?? stats?.return_unroutable_details, color: 6 },
  ];
  return [
    { label: 'Published', details: stats?.publish_details, color: 3 },
    { label: 'Delivered', details: stats?.deliver_get_details, color: 1 },
    { label: 'Acknowledged', details: stats?.ack_details, color: 4 },
    ...extra.filter((line) => line.details !== undefined),
  ];
}

export function TrafficCharts({ totals, stats, range, ranges = RANGES, onRange }: {
  totals: QueueTotals;
  stats: MessageStats | undefined;
  range: Range;
  ranges?: readonly Range[];
  onRange: (id: string) => void;
}) {
  return (
    <Card title="Traffic" testid="charts" aside={<Choice label="Time shown" options={ranges} current={range.id} onPick={onRange} />}>
      <div class="columns">
        <Chart title="Messages waiting" kind="level" lines={depthLines(totals)} />
        <Chart title="Messages per second" kind="rate" lines={rateLines(stats)} />
      </div>
    </Card>
  );
}
