import { useLive } from '../api/live';
import { apiPath } from '../api/client';
import type { Channel, Connection } from '../api/types';
import { Card, Facts, PageHead, Stat, Stats, TableFacts } from '../components/basics';
import { Chart } from '../components/Chart';
import { DataTable } from '../components/DataTable';
import { ErrorNote, Loading } from '../components/feedback';
import { bytes, count, dateTime, plural } from '../lib/format';
import { go } from '../lib/hooks';
import { rangeOf, sampleQuery } from '../lib/series';
import { CHANNEL_COLUMNS } from './channels';
import { clientName, closeConnection, StateBadge } from './connections';

export function ConnectionPage({ name }: { name: string }) {
  const live = useLive<Connection>(`${apiPath('connections', name)}?${sampleQuery(rangeOf('1m'))}`);
  const channels = useLive<Channel[]>(apiPath('connections', name, 'channels'));
  const parent = { label: 'Connections', to: '#/connections' };
  const data = live.data;
  if (data === undefined) {
    return <><PageHead title={name} parent={parent} />{live.error ? <ErrorNote error={live.error} /> : <Loading />}</>;
  }
  const close = async (): Promise<void> => {
    if (await closeConnection(data)) go('#/connections');
  };
  const { capabilities, ...client } = data.client_properties ?? {};
  return (
    <>
      <PageHead title={clientName(data) ?? data.name} parent={parent} sub={<><StateBadge state={data.state} /> {data.name}</>}>
        <button class="button button-danger" onClick={() => void close()}>Close connection</button>
      </PageHead>
      {live.error && <ErrorNote error={live.error} />}
      <Stats>
        <Stat label="From client" value={`${bytes(data.recv_oct_details?.rate ?? 0)}/s`} note={`${bytes(data.recv_oct)} in all`} />
        <Stat label="To client" value={`${bytes(data.send_oct_details?.rate ?? 0)}/s`} note={`${bytes(data.send_oct)} in all`} />
        <Stat label="Channels" value={count(data.channels)} note={`of ${count(data.channel_max)}`} />
      </Stats>
      <Card title="Traffic" testid="charts">
        <Chart title="Octets per second" kind="octets" lines={[
          { label: 'From client', details: data.recv_oct_details, color: 3 },
          { label: 'To client', details: data.send_oct_details, color: 1 },
        ]} />
      </Card>
      <Card title="Channels" testid="connection-channels">
        {(channels.data ?? []).length === 0 ? <p class="muted">This connection has no open channel.</p> : (
          <DataTable label="Channels of this connection" columns={CHANNEL_COLUMNS} rows={channels.data ?? []} rowKey={(one) => one.name} />
        )}
      </Card>
      <div class="columns">
        <Card title="Connection">
          <Facts items={[
            ['User', data.user], ['Virtual host', data.vhost], ['Protocol', data.protocol], ['TLS', data.ssl ? 'yes' : 'no'],
            ['Connected', dateTime(data.connected_at)], ['Heartbeat', data.timeout === undefined ? undefined : data.timeout === 0 ? 'off' : plural(data.timeout, 'second')],
            ['Largest frame', bytes(data.frame_max)], ['Peer', data.peer_host === undefined ? undefined : `${data.peer_host}:${data.peer_port}`],
          ]} />
        </Card>
        <Card title="What the client says of itself"><TableFacts table={client} none="Nothing." /></Card>
        {capabilities !== undefined && <Card title="Client capabilities"><TableFacts table={capabilities as Record<string, unknown>} /></Card>}
      </div>
    </>
  );
}
