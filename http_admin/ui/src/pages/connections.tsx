import { apiPath, remove } from '../api/client';
import type { Connection } from '../api/types';
import { Badge, type Tone } from '../components/badge';
import { Card, Empty } from '../components/card';
import { CodeSnippet } from '../components/code-snippet';
import { type Column, DataTable, FilterBox, Pager } from '../components/data-table';
import { confirmLoss } from '../components/dialog';
import { ConnectionLink } from '../components/links';
import { PageHead } from '../components/page-head';
import { ErrorNote, Loading } from '../components/status-notes';
import { attempt } from '../components/toasts';
import { bytes, count, dateTime, duration, plural } from '../lib/format';
import { useListState, usePage } from '../lib/list-state';
import { defaultVhost, useScope } from '../lib/session';
import { amqpUrl, publishSnippet } from '../lib/snippets';

export function clientName(connection: Connection): string | undefined {
  const given = connection.user_provided_name ?? connection.client_properties.connection_name;
  return typeof given === 'string' && given !== '' ? given : undefined;
}

/** Closes a connection after a confirmation; true if it was closed. */
export async function closeConnection(connection: Connection): Promise<boolean> {
  const confirmed = await confirmLoss({
    title: 'Close this connection?',
    loss: `${clientName(connection) ?? connection.name} will be disconnected, with ${plural(connection.channels, 'channel')}. Its unacknowledged messages return to their queues, and its exclusive queues are deleted. Most clients reconnect automatically.`,
    action: 'Close connection',
  });
  if (!confirmed) return false;
  const reason = { 'X-Reason': 'Closed from the dashboard' };
  return attempt(
    () => remove(apiPath('connections', connection.name), reason),
    'Connection closed.',
  );
}

const COLUMNS: readonly Column<Connection>[] = [
  {
    id: 'name',
    title: 'Client',
    sort: 'user_provided_name',
    render: (connection) => (
      <>
        <ConnectionLink name={connection.name} label={clientName(connection) ?? connection.name} />
        {clientName(connection) !== undefined && <span class="under">{connection.name}</span>}
      </>
    ),
  },
  { id: 'user', title: 'User', sort: 'user', minor: true, render: (connection) => connection.user },
  {
    id: 'vhost',
    title: 'Virtual host',
    sort: 'vhost',
    minor: true,
    render: (connection) => connection.vhost,
  },
  {
    id: 'state',
    title: 'State',
    sort: 'state',
    render: (connection) => (
      <>
        <StateBadge state={connection.state} />
        {connection.ssl && <Badge tone="info">TLS</Badge>}
      </>
    ),
  },
  {
    id: 'channels',
    title: 'Channels',
    sort: 'channels',
    numeric: true,
    minor: true,
    render: (connection) => count(connection.channels),
  },
  {
    id: 'in',
    title: 'From client',
    sort: 'recv_oct_details.rate',
    numeric: true,
    minor: true,
    render: (connection) => `${bytes(connection.recv_oct_details.rate)}/s`,
  },
  {
    id: 'out',
    title: 'To client',
    sort: 'send_oct_details.rate',
    numeric: true,
    minor: true,
    render: (connection) => `${bytes(connection.send_oct_details.rate)}/s`,
  },
  {
    id: 'since',
    title: 'Connected for',
    sort: 'connected_at',
    numeric: true,
    minor: true,
    render: (connection) => (
      <span title={`since ${dateTime(connection.connected_at)}`}>
        {duration(Date.now() - connection.connected_at)}
      </span>
    ),
  },
  {
    id: 'close',
    title: '',
    render: (connection) => (
      <button
        type="button"
        class="button button-small"
        aria-label={`Close ${clientName(connection) ?? connection.name}`}
        onClick={() => void closeConnection(connection)}
      >
        Close
      </button>
    ),
  },
];

const STATE_TONES: Record<string, Tone> = { running: 'good', idle: 'plain', flow: 'info' };

export function StateBadge({ state }: { state: string }) {
  return <Badge tone={STATE_TONES[state] ?? 'warn'}>{state}</Badge>;
}

export function ConnectionsPage() {
  const scope = useScope();
  const list = useListState(['connections'], { by: 'connected_at', descending: true });
  const base =
    scope.vhost === '' ? '/api/connections' : apiPath('vhosts', scope.vhost, 'connections');
  const { data, error, loading } = usePage<Connection>(base, list);
  const url = amqpUrl(scope.overview, scope.session.name, defaultVhost(scope), location.hostname);
  return (
    <>
      <PageHead title="Connections" sub="AMQP clients that are connected to this broker." />
      {error && <ErrorNote error={error} />}
      {data === undefined && !error && <Loading />}
      {data?.total_count === 0 && (
        <Card>
          <Empty title="No connections">
            <p>This program connects to the broker:</p>
            <CodeSnippet code={publishSnippet(url)} label="Python program that connects" />
          </Empty>
        </Card>
      )}
      {data !== undefined && data.total_count > 0 && (
        <Card tight>
          <div class="toolbar">
            <FilterBox label="Filter by name" value={list.filter} onInput={list.setFilter} />
          </div>
          <DataTable
            label="Connections"
            testid="connections"
            columns={COLUMNS}
            rows={data.items}
            rowKey={(connection) => connection.name}
            sorting={list.sorting}
            onSort={list.setSorting}
            busy={loading}
          />
          <Pager data={data} onPage={list.setPage} noun="connections" />
        </Card>
      )}
    </>
  );
}
