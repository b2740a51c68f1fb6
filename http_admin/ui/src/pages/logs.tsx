import { apiPath } from '../api/client';
import { useLive } from '../api/live';
import type { Log } from '../api/types';
import { Card, Empty, PageHead, Snippet } from '../components/basics';
import { DataTable, type Column } from '../components/DataTable';
import { Loading, Unavailable } from '../components/feedback';
import { Icon } from '../components/Icon';
import { bytes, count } from '../lib/format';
import { records, retentionWords, segmentCount } from '../lib/logs';
import { href } from '../lib/route';
import { homeVhost, useScope } from '../lib/session';
import { amqpUrl, logSnippet } from '../lib/snippets';

const COLUMNS: readonly Column<Log>[] = [
  { id: 'name', title: 'Name', render: (log) => <><a href={href(['logs', log.vhost, log.name])}>{log.name}</a> <span class="vhost-tag">{log.vhost}</span></> },
  { id: 'partitions', title: 'Partitions', numeric: true, minor: true, render: (log) => count(log.partitions.length) },
  { id: 'records', title: 'Records', numeric: true, render: (log) => count(records(log.partitions)) },
  { id: 'groups', title: 'Groups', numeric: true, render: (log) => count(log.groups?.length ?? 0) },
  { id: 'segments', title: 'Segments', numeric: true, minor: true, render: (log) => count(log.partitions.reduce((sum, one) => sum + segmentCount(one), 0)) },
  { id: 'bytes', title: 'Size', numeric: true, minor: true, render: (log) => bytes(log.partitions.reduce((sum, one) => sum + one.bytes, 0)) },
  { id: 'retention', title: 'Retention', minor: true, render: (log) => retentionWords(log) },
];

export function LogsPage() {
  const scope = useScope();
  const { data, error } = useLive<Log[]>(scope.vhost === '' ? '/api/logs' : apiPath('logs', scope.vhost));
  const url = amqpUrl(scope.overview, scope.session.name, homeVhost(scope), location.hostname);
  return (
    <>
      <PageHead title="Logs" sub="Records stay after reading: every reader and every group has its own place.">
        <a class="button button-main" href={href(['new-queue'], { type: 'stream' })}><Icon name="plus" /> Declare log</a>
      </PageHead>
      {error && <Unavailable what="logs" error={error} />}
      {data === undefined && !error && <Loading />}
      {data?.length === 0 && (
        <Card>
          <Empty title="No logs yet">
            <p>A log is a queue of type stream. With partitions, a group of consumers can share it:</p>
            <Snippet code={logSnippet(url)} label="Python program that declares a partitioned log" />
          </Empty>
        </Card>
      )}
      {data !== undefined && data.length > 0 && (
        <Card tight><DataTable label="Logs" testid="logs" columns={COLUMNS} rows={data} rowKey={(log) => `${log.vhost}\n${log.name}`} /></Card>
      )}
    </>
  );
}
