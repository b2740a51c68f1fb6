/** Parts of the queue page that are different for a log with partitions. */

import type { Log, Queue } from '../api/types';
import { bytes, count, rate } from '../lib/format';
import { href } from '../lib/route';
import { Card, Empty } from './card';
import { PartitionLanes } from './partition-lanes';
import { Stat, Stats } from './stats';

/** Replaces the figures and charts of a queue: the records are in the partitions. */
export function PartitionedLogOverview({ queue, log }: { queue: Queue; log: Log }) {
  return (
    <>
      <Stats>
        <Stat label="Records" value={count(log.messages)} testid="records-held" />
        <Stat label="Size" value={bytes(log.bytes)} />
        <Stat label="Partitions" value={count(log.partitions.length)} />
        <Stat label="Groups" value={count(log.groups.length)} />
        <Stat
          label="Unacknowledged"
          value={count(queue.messages_unacknowledged)}
          testid="unacked"
        />
        <Stat
          label="Out"
          value={rate(queue.message_stats?.deliver_get_details?.rate ?? 0)}
          note={`${count(queue.message_stats?.ack ?? 0)} acknowledged`}
        />
        <Stat label="Consumers" value={count(queue.consumers)} />
      </Stats>
      <Card title="Partitions">
        <p class="muted card-lead">
          The records are in the partitions; each of them is a queue with its own page.
        </p>
        <PartitionLanes partitions={log.partitions} group={undefined} vhost={queue.vhost} />
      </Card>
    </>
  );
}

/** Replaces the consumers of a queue that is a partition: it is read by consumers of the log. */
export function PartitionConsumers({ log }: { log: Log }) {
  const groups = log.groups;
  const link = <a href={href(['logs', log.vhost, log.name])}>{log.name}</a>;
  return (
    <Empty title={groups.length === 0 ? 'No consumers' : 'Read by groups'}>
      {groups.length === 0 ? (
        <p>Consumers of the log {link} read this partition too. It has no consumers of its own.</p>
      ) : (
        <p>
          These groups of the log {link} share its partitions: {groups.join(', ')}. Its page shows
          their members and offsets.
        </p>
      )}
    </Empty>
  );
}
