/** What a queue's page says of a log: its figures are in its partitions, its readers may be groups. */

import type { Log, Queue } from '../api/types';
import { bytes, count, rate } from '../lib/format';
import { records } from '../lib/logs';
import { href } from '../lib/route';
import { Card, Empty, Stat, Stats } from './basics';
import { Lanes } from './Lanes';

/** In place of a queue's numbers and charts, which would say that nothing is there. */
export function WholeLog({ queue, log }: { queue: Queue; log: Log }) {
  return (
    <>
      <Stats>
        <Stat label="Records" value={count(records(log.partitions))} testid="records-held" />
        <Stat label="Size" value={bytes(log.partitions.reduce((sum, one) => sum + one.bytes, 0))} />
        <Stat label="Partitions" value={count(log.partitions.length)} />
        <Stat label="Groups" value={count(log.groups?.length ?? 0)} />
        <Stat label="Unacknowledged" value={count(queue.messages_unacknowledged)} testid="unacked" />
        <Stat label="Out" value={rate(queue.message_stats?.deliver_get_details?.rate ?? 0)} note={`${count(queue.message_stats?.ack ?? 0)} acknowledged`} />
        <Stat label="Consumers" value={count(queue.consumers)} />
      </Stats>
      <Card title="Partitions">
        <p class="muted card-lead">Records are in the partitions, each a queue with figures of its own.</p>
        <Lanes partitions={log.partitions} group={undefined} vhost={queue.vhost} />
      </Card>
    </>
  );
}

/** A partition has no consumers of its own while groups share it out among theirs. */
export function ReadThroughLog({ log }: { log: Log }) {
  const groups = log.groups ?? [];
  const to = <a href={href(['logs', log.vhost, log.name])}>{log.name}</a>;
  return (
    <Empty title={groups.length === 0 ? 'No consumer' : 'Read by groups'}>
      {groups.length === 0
        ? <p>Consumers of the log {to} read this partition, too; nobody reads this one alone.</p>
        : <p>The groups of the log {to} share its partitions: {groups.join(', ')}. There you see who reads this one, and how far it is.</p>}
    </Empty>
  );
}
