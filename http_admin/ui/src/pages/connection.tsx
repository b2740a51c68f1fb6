import { apiPath } from '../api/client';
import { useLive } from '../api/live';
import type { Channel, Connection } from '../api/types';
import { Card } from '../components/card';
import { DataTable } from '../components/data-table';
import { ArgumentList, KeyValueList } from '../components/key-value-list';
import { LineChart } from '../components/line-chart';
import { PageHead } from '../components/page-head';
import { Stat, Stats } from '../components/stats';
import { ErrorNote, Loading } from '../components/status-notes';
import { bytes, count, dateTime, plural } from '../lib/format';
import { navigate } from '../lib/navigation';
import { rangeOf, sampleQuery } from '../lib/series';
import { CHANNEL_COLUMNS } from './channels';
import { clientName, closeConnection, StateBadge } from './connections';

export function ConnectionPage({ name }: { name: string }) {
  const live = useLive<Connection>(`${apiPath('connections', name)}?${sampleQuery(rangeOf('1m'))}`);
  const channels = useLive<Channel[]>(apiPath('connections', name, 'channels'));
  const parent = { label: 'Connections', to: '#/connections' };
  const data = live.data;
  if (data === undefined) {
    return (
      <>
        <PageHead title={name} parent={parent} />
        {live.error ? <ErrorNote error={live.error} /> : <Loading />}
      </>
    );
  }
  const close = async (): Promise<void> => {
    if (await closeConnection(data)) navigate('#/connections');
  };
  const { capabilities, ...client } = data.client_properties;
  return (
    <>
      <PageHead
        title={clientName(data) ?? data.name}
        parent={parent}
        sub={
          <>
            <StateBadge state={data.state} /> {data.name}
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
          label="From client"
          value={`${bytes(data.recv_oct_details.rate)}/s`}
          note={`${bytes(data.recv_oct)} in total`}
        />
        <Stat
          label="To client"
          value={`${bytes(data.send_oct_details.rate)}/s`}
          note={`${bytes(data.send_oct)} in total`}
        />
        <Stat
          label="Channels"
          value={count(data.channels)}
          note={`of ${count(data.channel_max)}`}
        />
      </Stats>
      <Card title="Traffic" testid="charts">
        <LineChart
          title="Bytes per second"
          kind="bytes"
          lines={[
            { label: 'From client', details: data.recv_oct_details, color: 3 },
            { label: 'To client', details: data.send_oct_details, color: 1 },
          ]}
        />
      </Card>
      <Card title="Channels" testid="connection-channels">
        {(channels.data ?? []).length === 0 ? (
          <p class="muted">This connection has no open channels.</p>
        ) : (
          <DataTable
            label="Channels of this connection"
            columns={CHANNEL_COLUMNS}
            rows={channels.data ?? []}
            rowKey={(channel) => channel.name}
          />
        )}
      </Card>
      <div class="columns">
        <Card title="Connection">
          <KeyValueList
            items={[
              ['User', data.user],
              ['Virtual host', data.vhost],
              ['Protocol', data.protocol],
              ['TLS', data.ssl ? 'yes' : 'no'],
              ['Connected', dateTime(data.connected_at)],
              ['Heartbeat', data.timeout === 0 ? 'off' : plural(data.timeout, 'second')],
              ['Max frame size', bytes(data.frame_max)],
              ['Peer', `${data.peer_host}:${data.peer_port}`],
            ]}
          />
        </Card>
        <Card title="Client properties">
          <ArgumentList table={client} none="None." />
        </Card>
        {capabilities !== undefined && (
          <Card title="Client capabilities">
            <ArgumentList table={capabilities as Record<string, unknown>} />
          </Card>
        )}
      </div>
    </>
  );
}
