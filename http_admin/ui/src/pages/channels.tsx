import { apiPath } from '../api/client';
import type { Channel } from '../api/types';
import { Badge, Card, Empty, PageHead } from '../components/basics';
import { DataTable, FilterBox, Pager, type Column } from '../components/DataTable';
import { ErrorNote, Loading } from '../components/feedback';
import { ChannelLink } from '../components/links';
import { count, rate } from '../lib/format';
import { useListState, usePage } from '../lib/list';
import { useScope } from '../lib/session';
import { StateBadge } from './connections';

export const CHANNEL_COLUMNS: readonly Column<Channel>[] = [
  { id: 'name', title: 'Channel', sort: 'name', render: (one) => (
    <span class="wide-name">
      <ChannelLink name={one.name} />
      <span class="under">{one.user} in {one.vhost} <Mode channel={one} /></span>
    </span>
  ) },
  { id: 'state', title: 'State', sort: 'state', render: (one) => <StateBadge state={one.state} /> },
  { id: 'consumers', title: 'Consumers', sort: 'consumer_count', numeric: true, minor: true, render: (one) => count(one.consumer_count) },
  { id: 'prefetch', title: 'Prefetch', sort: 'prefetch_count', numeric: true, minor: true, render: (one) => (one.prefetch_count === 0 ? 'no limit' : count(one.prefetch_count)) },
  { id: 'unacked', title: 'Unacked', sort: 'messages_unacknowledged', numeric: true, render: (one) => count(one.messages_unacknowledged) },
  { id: 'publish', title: 'Publish', sort: 'message_stats.publish_details.rate', numeric: true, minor: true, render: (one) => rate(one.message_stats?.publish_details?.rate ?? 0) },
  { id: 'deliver', title: 'Deliver', sort: 'message_stats.deliver_get_details.rate', numeric: true, minor: true, render: (one) => rate(one.message_stats?.deliver_get_details?.rate ?? 0) },
];

export function Mode({ channel }: { channel: Channel }) {
  if (channel.transactional) return <Badge tone="info" title="Transactions">tx</Badge>;
  if (channel.confirm) return <Badge tone="good" title="Publisher confirms">confirms</Badge>;
  return null;
}

export function ChannelsPage() {
  const { vhost } = useScope();
  const list = useListState(['channels'], { by: 'name', descending: false });
  const base = vhost === '' ? '/api/channels' : apiPath('vhosts', vhost, 'channels');
  const { data, error, loading } = usePage<Channel>(base, list);
  return (
    <>
      <PageHead title="Channels" sub="The lanes inside connections on which clients publish and consume." />
      {error && <ErrorNote error={error} />}
      {data === undefined && !error && <Loading />}
      {data?.total_count === 0 && (
        <Card>
          <Empty title="No open channel"><p>A channel appears as soon as a client opens one; <a href="#/connections">the connections page</a> shows how to connect.</p></Empty>
        </Card>
      )}
      {data !== undefined && data.total_count > 0 && (
        <Card tight>
          <div class="toolbar"><FilterBox label="Filter by name" value={list.filter} onInput={list.setFilter} /></div>
          <DataTable label="Channels" testid="channels" columns={CHANNEL_COLUMNS} rows={data.items} rowKey={(one) => one.name}
            sorting={list.sorting} onSort={list.setSorting} busy={loading} />
          <Pager data={data} onPage={list.setPage} noun="channels" />
        </Card>
      )}
    </>
  );
}
