/** The charts of the overview, of a queue and of a virtual host, with a choice of time ranges. */

import type { MessageStats, QueueTotals } from '../api/types';
import { RANGES, type Range } from '../lib/series';
import { Card } from './card';
import { type Line, LineChart } from './line-chart';
import { ToggleGroup } from './toggle-group';

export function depthLines(totals: QueueTotals): Line[] {
  return [
    { label: 'Ready', details: totals.messages_ready_details, color: 1 },
    { label: 'Unacknowledged', details: totals.messages_unacknowledged_details, color: 2 },
  ];
}

/** Three lines are always there; the others only if the server has counted something. */
export function rateLines(stats: MessageStats | undefined): Line[] {
  const extra: Line[] = [
    { label: 'Redelivered', details: stats?.redeliver_details, color: 5 },
    {
      label: 'Unroutable',
      details: stats?.drop_unroutable_details ?? stats?.return_unroutable_details,
      color: 6,
    },
  ];
  return [
    { label: 'Published', details: stats?.publish_details, color: 3 },
    { label: 'Delivered', details: stats?.deliver_get_details, color: 1 },
    { label: 'Acknowledged', details: stats?.ack_details, color: 4 },
    ...extra.filter((line) => line.details !== undefined),
  ];
}

export function TrafficCharts({
  totals,
  stats,
  range,
  ranges = RANGES,
  onRange,
}: {
  totals: QueueTotals;
  stats: MessageStats | undefined;
  range: Range;
  ranges?: readonly Range[];
  onRange: (id: string) => void;
}) {
  return (
    <Card
      title="Traffic"
      testid="charts"
      aside={
        <ToggleGroup label="Time range" options={ranges} current={range.id} onPick={onRange} />
      }
    >
      <div class="columns">
        <LineChart title="Queued messages" kind="level" lines={depthLines(totals)} />
        <LineChart title="Messages per second" kind="rate" lines={rateLines(stats)} />
      </div>
    </Card>
  );
}
