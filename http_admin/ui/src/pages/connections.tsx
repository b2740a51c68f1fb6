import { apiPath, remove } from '../api/client';
import type { Connection } from '../api/types';
import { Badge, Card, Empty, PageHead, Snippet } from '../components/basics';
import { DataTable, FilterBox, Pager, type Column } from '../components/DataTable';
import { attempt, confirmLoss, ErrorNote, Loading } from '../components/feedback';
import { ConnectionLink } from '../components/links';
import { bytes, count, dateTime, duration, plural } from '../lib/format';
import { useListState, usePage } from '../lib/list';
import { homeVhost, useScope } from '../lib/session';
import { amqpUrl, publishSnippet } from '../lib/snippets';

export function clientName(connection: Connection): string | undefined {
  const given = connection.user_provided_name ?? connection.client_properties?.['connection_name'];
  return typeof given === 'string' && given !== '' ? given : undefined;
}

/** Asks, then closes; true when it was closed. */
export async function closeConnection(connection: Connection): Promise<boolean> {
  const yes = await confirmLoss({
    title: 'Close this connection?',
    loss: `${clientName(connection) ?? connection.name} is cut off with its ${plural(connection.channels ?? 0, 'channel')}. Messages it has not acknowledged go back to their queues, its exclusive queues are deleted. Most clients connect again by themselves.`,
    action: 'Close connection',
  });
  if (!yes) return false;
  const reason = { 'X-Reason': 'Closed from the dashboard' };
  return attempt(() => remove(apiPath('connections', connection.name), reason), 'Connection closed.');
}

const COLUMNS: readonly Column<Connection>[] = [
  { id: 'name', title: 'Client', sort: 'user_provided_name', render: (one) => (
    <>
      <ConnectionLink name={one.name} label={clientName(one) ?? one.name} />
      {clientName(one) !== undefined && <span class="under">{one.name}</span>}
    </>
  ) },
  { id: 'user', title: 'User', sort: 'user', minor: true, render: (one) => one.user ?? '–' },
  { id: 'vhost', title: 'Virtual host', sort: 'vhost', minor: true, render: (one) => one.vhost ?? '–' },
  { id: 'state', title: 'State', sort: 'state', render: (one) => <><StateBadge state={one.state} />{one.ssl && <Badge tone="info">TLS</Badge>}</> },
  { id: 'channels', title: 'Channels', sort: 'channels', numeric: true, minor: true, render: (one) => count(one.channels) },
  { id: 'in', title: 'From client', sort: 'recv_oct_details.rate', numeric: true, minor: true, render: (one) => `${bytes(one.recv_oct_details?.rate ?? 0)}/s` },
  { id: 'out', title: 'To client', sort: 'send_oct_details.rate', numeric: true, minor: true, render: (one) => `${bytes(one.send_oct_details?.rate ?? 0)}/s` },
  { id: 'since', title: 'For', sort: 'connected_at', numeric: true, minor: true, render: (one) => <span title={`since ${dateTime(one.connected_at)}`}>{duration(one.connected_at === undefined ? undefined : Date.now() - one.connected_at)}</span> },
  { id: 'close', title: '', render: (one) => (
    <button class="button button-small" aria-label={`Close ${clientName(one) ?? one.name}`} onClick={() => void closeConnection(one)}>Close</button>
  ) },
];

export function StateBadge({ state }: { state: string | undefined }) {
  const tone = state === 'running' ? 'good' : state === 'idle' ? 'plain' : state === undefined ? 'plain' : state === 'flow' ? 'info' : 'warn';
  return <Badge tone={tone}>{state ?? 'unknown'}</Badge>;
}

export function ConnectionsPage() {
  const scope = useScope();
  const list = useListState(['connections'], { by: 'connected_at', descending: true });
  const base = scope.vhost === '' ? '/api/connections' : apiPath('vhosts', scope.vhost, 'connections');
  const { data, error, loading } = usePage<Connection>(base, list);
  const url = amqpUrl(scope.overview, scope.session.name, homeVhost(scope), location.hostname);
  return (
    <>
      <PageHead title="Connections" sub="Every client that is connected, over AMQP." />
      {error && <ErrorNote error={error} />}
      {data === undefined && !error && <Loading />}
      {data?.total_count === 0 && (
        <Card>
          <Empty title="Nobody is connected">
            <p>A client needs only the address of this broker:</p>
            <Snippet code={publishSnippet(url)} label="Python program that connects" />
          </Empty>
        </Card>
      )}
      {data !== undefined && data.total_count > 0 && (
        <Card tight>
          <div class="toolbar"><FilterBox label="Filter by name" value={list.filter} onInput={list.setFilter} /></div>
          <DataTable label="Connections" testid="connections" columns={COLUMNS} rows={data.items} rowKey={(one) => one.name}
            sorting={list.sorting} onSort={list.setSorting} busy={loading} />
          <Pager data={data} onPage={list.setPage} noun="connections" />
        </Card>
      )}
    </>
  );
}
