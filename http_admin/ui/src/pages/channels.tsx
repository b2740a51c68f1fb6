import { apiPath } from '../api/client';
import type { Channel } from '../api/types';
import { Badge } from '../components/badge';
import { Card, Empty } from '../components/card';
import { type Column, DataTable, FilterBox, Pager } from '../components/data-table';
import { ChannelLink } from '../components/links';
import { PageHead } from '../components/page-head';
import { ErrorNote, Loading } from '../components/status-notes';
import { count, rate } from '../lib/format';
import { useListState, usePage } from '../lib/list-state';
import { useScope } from '../lib/session';
import { StateBadge } from './connections';

export const CHANNEL_COLUMNS: readonly Column<Channel>[] = [
  {
    id: 'name',
    title: 'Channel',
    sort: 'name',
    render: (channel) => (
      <span class="wide-name">
        <ChannelLink name={channel.name} />
        <span class="under">
          {channel.user} in {channel.vhost} <ChannelMode channel={channel} />
        </span>
      </span>
    ),
  },
  {
    id: 'state',
    title: 'State',
    sort: 'state',
    render: (channel) => <StateBadge state={channel.state} />,
  },
  {
    id: 'consumers',
    title: 'Consumers',
    sort: 'consumer_count',
    numeric: true,
    minor: true,
    render: (channel) => count(channel.consumer_count),
  },
  {
    id: 'prefetch',
    title: 'Prefetch',
    sort: 'prefetch_count',
    numeric: true,
    minor: true,
    render: (channel) =>
      channel.prefetch_count === 0 ? 'unlimited' : count(channel.prefetch_count),
  },
  {
    id: 'unacked',
    title: 'Unacked',
    sort: 'messages_unacknowledged',
    numeric: true,
    render: (channel) => count(channel.messages_unacknowledged),
  },
  {
    id: 'publish',
    title: 'Publish',
    sort: 'message_stats.publish_details.rate',
    numeric: true,
    minor: true,
    render: (channel) => rate(channel.message_stats?.publish_details?.rate ?? 0),
  },
  {
    id: 'deliver',
    title: 'Deliver',
    sort: 'message_stats.deliver_get_details.rate',
    numeric: true,
    minor: true,
    render: (channel) => rate(channel.message_stats?.deliver_get_details?.rate ?? 0),
  },
];

export function ChannelMode({ channel }: { channel: Channel }) {
  if (channel.transactional)
    return (
      <Badge tone="info" title="Transactions">
        tx
      </Badge>
    );
  if (channel.confirm)
    return (
      <Badge tone="good" title="Publisher confirms">
        confirms
      </Badge>
    );
  return null;
}

export function ChannelsPage() {
  const { vhost } = useScope();
  const list = useListState(['channels'], { by: 'name', descending: false });
  const base = vhost === '' ? '/api/channels' : apiPath('vhosts', vhost, 'channels');
  const { data, error, loading } = usePage<Channel>(base, list);
  return (
    <>
      <PageHead
        title="Channels"
        sub="Clients publish and consume on channels of their connections."
      />
      {error && <ErrorNote error={error} />}
      {data === undefined && !error && <Loading />}
      {data?.total_count === 0 && (
        <Card>
          <Empty title="No open channels">
            <p>
              Channels are listed here as soon as clients open them. The{' '}
              <a href="#/connections">connections page</a> shows how to connect.
            </p>
          </Empty>
        </Card>
      )}
      {data !== undefined && data.total_count > 0 && (
        <Card tight>
          <div class="toolbar">
            <FilterBox label="Filter by name" value={list.filter} onInput={list.setFilter} />
          </div>
          <DataTable
            label="Channels"
            testid="channels"
            columns={CHANNEL_COLUMNS}
            rows={data.items}
            rowKey={(channel) => channel.name}
            sorting={list.sorting}
            onSort={list.setSorting}
            busy={loading}
          />
          <Pager data={data} onPage={list.setPage} noun="channels" />
        </Card>
      )}
    </>
  );
}
