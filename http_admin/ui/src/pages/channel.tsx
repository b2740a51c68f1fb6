import { useLive } from '../api/live';
import { apiPath, get } from '../api/client';
import type { Channel, Connection } from '../api/types';
import { Card, PageHead, Stat, Stats } from '../components/basics';
import { Chart } from '../components/Chart';
import { rateLines } from '../components/charts';
import { Consumers } from '../components/Consumers';
import { attempt, ErrorNote, Loading } from '../components/feedback';
import { ConnectionLink } from '../components/links';
import { count, rate } from '../lib/format';
import { go } from '../lib/hooks';
import { rangeOf, sampleQuery } from '../lib/series';
import { Mode } from './channels';
import { closeConnection, StateBadge } from './connections';

export function ChannelPage({ name }: { name: string }) {
  const live = useLive<Channel>(`${apiPath('channels', name)}?${sampleQuery(rangeOf('1m'))}`);
  const parent = { label: 'Channels', to: '#/channels' };
  const data = live.data;
  if (data === undefined) {
    return <><PageHead title={name} parent={parent} />{live.error ? <ErrorNote error={live.error} /> : <Loading />}</>;
  }
  const connection = data.connection_details?.name;
  // AMQP lets the server side end a whole connection only, so that is what the button says.
  const close = async (): Promise<void> => {
    if (connection === undefined) return;
    let known: Connection = { name: connection };
    await attempt(async () => { known = await get<Connection>(apiPath('connections', connection)); }, '');
    if (await closeConnection(known)) go('#/channels');
  };
  const stats = data.message_stats;
  return (
    <>
      <PageHead title={data.name} parent={parent} sub={<><StateBadge state={data.state} /> <Mode channel={data} /> on <ConnectionLink name={connection} /></>}>
        <button class="button button-danger" onClick={() => void close()}>Close its connection</button>
      </PageHead>
      {live.error && <ErrorNote error={live.error} />}
      <Stats>
        <Stat label="Published" value={rate(stats?.publish_details?.rate ?? 0)} note={`${count(stats?.publish ?? 0)} in all`} />
        <Stat label="Delivered" value={rate(stats?.deliver_get_details?.rate ?? 0)} note={`${count(stats?.deliver_get ?? 0)} in all`} />
        <Stat label="Unacknowledged" value={count(data.messages_unacknowledged)} />
        <Stat label="Unconfirmed" value={count(data.messages_unconfirmed)} />
        <Stat label="Prefetch" value={data.prefetch_count === 0 ? 'no limit' : count(data.prefetch_count)} note={data.global_prefetch_count ? `${data.global_prefetch_count} for the channel` : undefined} />
      </Stats>
      <Card title="Traffic"><Chart title="Messages per second" kind="rate" lines={rateLines(stats)} /></Card>
      <Card title="Consumers">
        {(data.consumer_details ?? []).length === 0 ? <p class="muted">Nothing is consumed on this channel.</p> : <Consumers consumers={data.consumer_details ?? []} of="channel" />}
      </Card>
    </>
  );
}
