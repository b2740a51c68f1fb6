import { apiPath, errorText, get } from '../api/client';
import { useLive } from '../api/live';
import type { ChannelDetails, Connection } from '../api/types';
import { Card } from '../components/card';
import { ConsumerTable } from '../components/consumer-table';
import { LineChart } from '../components/line-chart';
import { ConnectionLink } from '../components/links';
import { PageHead } from '../components/page-head';
import { Stat, Stats } from '../components/stats';
import { ErrorNote, Loading } from '../components/status-notes';
import { toast } from '../components/toasts';
import { rateLines } from '../components/traffic-charts';
import { count, rate } from '../lib/format';
import { navigate } from '../lib/navigation';
import { rangeOf, sampleQuery } from '../lib/series';
import { ChannelMode } from './channels';
import { closeConnection, StateBadge } from './connections';

export function ChannelPage({ name }: { name: string }) {
  const live = useLive<ChannelDetails>(
    `${apiPath('channels', name)}?${sampleQuery(rangeOf('1m'))}`,
  );
  const parent = { label: 'Channels', to: '#/channels' };
  const data = live.data;
  if (data === undefined) {
    return (
      <>
        <PageHead title={name} parent={parent} />
        {live.error ? <ErrorNote error={live.error} /> : <Loading />}
      </>
    );
  }
  const connection = data.connection_details.name;
  // The API can close a whole connection only, so the button is labelled accordingly.
  const close = async (): Promise<void> => {
    const isClosed = await get<Connection>(apiPath('connections', connection)).then(
      closeConnection,
      (error: unknown) => {
        toast(errorText(error), 'bad');
        return false;
      },
    );
    if (isClosed) navigate('#/channels');
  };
  const stats = data.message_stats;
  return (
    <>
      <PageHead
        title={data.name}
        parent={parent}
        sub={
          <>
            <StateBadge state={data.state} /> <ChannelMode channel={data} /> on{' '}
            <ConnectionLink name={connection} />
          </>
        }
      >
        <button type="button" class="button button-danger" onClick={() => void close()}>
          Close connection
        </button>
      </PageHead>
      {live.error && <ErrorNote error={live.error} />}
      <Stats>
        <Stat
          label="Published"
          value={rate(stats?.publish_details?.rate ?? 0)}
          note={`${count(stats?.publish ?? 0)} in total`}
        />
        <Stat
          label="Delivered"
          value={rate(stats?.deliver_get_details?.rate ?? 0)}
          note={`${count(stats?.deliver_get ?? 0)} in total`}
        />
        <Stat label="Unacknowledged" value={count(data.messages_unacknowledged)} />
        <Stat label="Unconfirmed" value={count(data.messages_unconfirmed)} />
        <Stat
          label="Prefetch"
          value={data.prefetch_count === 0 ? 'unlimited' : count(data.prefetch_count)}
          note={
            data.global_prefetch_count ? `${data.global_prefetch_count} per channel` : undefined
          }
        />
      </Stats>
      <Card title="Traffic">
        <LineChart title="Messages per second" kind="rate" lines={rateLines(stats)} />
      </Card>
      <Card title="Consumers">
        {data.consumer_details.length === 0 ? (
          <p class="muted">This channel has no consumers.</p>
        ) : (
          <ConsumerTable consumers={data.consumer_details} of="channel" />
        )}
      </Card>
    </>
  );
}
