import type { Consumer } from '../api/types';
import { count, plural } from '../lib/format';
import { Badge } from './badge';
import { type Column, DataTable } from './data-table';
import { ChannelLink, QueueLink } from './links';

const TAG_COLUMN: Column<Consumer> = {
  id: 'tag',
  title: 'Consumer tag',
  render: (consumer) => <code>{consumer.consumer_tag}</code>,
};
const COLUMNS: readonly Column<Consumer>[] = [
  {
    id: 'ack',
    title: 'Ack mode',
    render: (consumer) => (consumer.ack_required ? 'manual' : <Badge tone="warn">automatic</Badge>),
  },
  {
    id: 'prefetch',
    title: 'Prefetch',
    numeric: true,
    render: (consumer) =>
      consumer.prefetch_count === 0 ? 'unlimited' : count(consumer.prefetch_count),
  },
  {
    id: 'active',
    title: 'Active',
    render: (consumer) =>
      !consumer.active ? <Badge>waiting</Badge> : <Badge tone="good">active</Badge>,
  },
  {
    id: 'args',
    title: 'Arguments',
    minor: true,
    render: (consumer) => {
      const total = Object.keys(consumer.arguments).length;
      return total === 0 ? (
        '–'
      ) : (
        <code title={JSON.stringify(consumer.arguments)}>{plural(total, 'argument')}</code>
      );
    },
  },
];
const CHANNEL_COLUMN: Column<Consumer> = {
  id: 'channel',
  title: 'Channel',
  render: (consumer) => <ChannelLink name={consumer.channel_details.name} />,
};
const QUEUE_COLUMN: Column<Consumer> = {
  id: 'queue',
  title: 'Queue',
  render: (consumer) => (
    <span>
      <QueueLink vhost={consumer.queue.vhost} name={consumer.queue.name} />
    </span>
  ),
};

export function ConsumerTable({
  consumers,
  of,
}: {
  consumers: readonly Consumer[];
  of: 'queue' | 'channel';
}) {
  const columns = [TAG_COLUMN, of === 'queue' ? CHANNEL_COLUMN : QUEUE_COLUMN, ...COLUMNS];
  return (
    <DataTable
      stacked
      label="Consumers"
      testid="consumers"
      columns={columns}
      rows={consumers}
      rowKey={(consumer) => `${consumer.channel_details.name}\n${consumer.consumer_tag}`}
    />
  );
}
