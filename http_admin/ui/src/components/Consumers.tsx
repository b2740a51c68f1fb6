import type { Consumer } from '../api/types';
import { count, plural } from '../lib/format';
import { Badge } from './basics';
import { DataTable, type Column } from './DataTable';
import { ChannelLink, QueueLink } from './links';

const TAG: Column<Consumer> = { id: 'tag', title: 'Consumer tag', render: (one) => <code>{one.consumer_tag}</code> };
const REST: readonly Column<Consumer>[] = [
  { id: 'ack', title: 'Acknowledges', render: (one) => (one.ack_required ? 'by hand' : <Badge tone="warn">automatic</Badge>) },
  { id: 'prefetch', title: 'Prefetch', numeric: true, render: (one) => (one.prefetch_count === 0 ? 'no limit' : count(one.prefetch_count)) },
  { id: 'active', title: 'Active', render: (one) => (one.active === false ? <Badge>waiting</Badge> : <Badge tone="good">active</Badge>) },
  { id: 'args', title: 'Arguments', minor: true, render: (one) => {
    const total = Object.keys(one.arguments ?? {}).length;
    return total === 0 ? '–' : <code title={JSON.stringify(one.arguments)}>{plural(total, 'argument')}</code>;
  } },
];
const BY_CHANNEL: Column<Consumer> = { id: 'channel', title: 'Channel', render: (one) => <ChannelLink name={one.channel_details?.name} /> };
const BY_QUEUE: Column<Consumer> = { id: 'queue', title: 'Queue', render: (one) => (one.queue ? <span><QueueLink vhost={one.queue.vhost} name={one.queue.name} /></span> : '–') };

export function Consumers({ consumers, of }: { consumers: readonly Consumer[]; of: 'queue' | 'channel' }) {
  const columns = [TAG, of === 'queue' ? BY_CHANNEL : BY_QUEUE, ...REST];
  return <DataTable stacked label="Consumers" testid="consumers" columns={columns} rows={consumers} rowKey={(one) => `${one.channel_details?.name}\n${one.consumer_tag}`} />;
}
