import { apiPath } from '../api/client';
import { useLive } from '../api/live';
import type { Log } from '../api/types';
import { Card, Empty } from '../components/card';
import { CodeSnippet } from '../components/code-snippet';
import { type Column, DataTable } from '../components/data-table';
import { Icon } from '../components/icon';
import { PageHead } from '../components/page-head';
import { Loading, NotSupported } from '../components/status-notes';
import { bytes, count } from '../lib/format';
import { retentionText } from '../lib/logs';
import { href } from '../lib/route';
import { defaultVhost, useScope } from '../lib/session';
import { amqpUrl, logSnippet } from '../lib/snippets';

const COLUMNS: readonly Column<Log>[] = [
  {
    id: 'name',
    title: 'Name',
    render: (log) => (
      <>
        <a href={href(['logs', log.vhost, log.name])}>{log.name}</a>{' '}
        <span class="vhost-tag">{log.vhost}</span>
      </>
    ),
  },
  {
    id: 'partitions',
    title: 'Partitions',
    numeric: true,
    minor: true,
    render: (log) => count(log.partitions.length),
  },
  {
    id: 'records',
    title: 'Records',
    numeric: true,
    render: (log) => count(log.messages),
  },
  { id: 'groups', title: 'Groups', numeric: true, render: (log) => count(log.groups.length) },
  {
    id: 'segments',
    title: 'Segments',
    numeric: true,
    minor: true,
    render: (log) =>
      count(log.partitions.reduce((sum, partition) => sum + partition.segments.length, 0)),
  },
  {
    id: 'bytes',
    title: 'Size',
    numeric: true,
    minor: true,
    render: (log) => bytes(log.bytes),
  },
  { id: 'retention', title: 'Retention', minor: true, render: (log) => retentionText(log) },
];

export function LogsPage() {
  const scope = useScope();
  const { data, error } = useLive<Log[]>(
    scope.vhost === '' ? '/api/logs' : apiPath('logs', scope.vhost),
  );
  const url = amqpUrl(scope.overview, scope.session.name, defaultVhost(scope), location.hostname);
  return (
    <>
      <PageHead
        title="Logs"
        sub="Records stay after they are read; every consumer and every group has its own offset."
      >
        <a class="button button-main" href={href(['new-queue'], { type: 'stream' })}>
          <Icon name="plus" /> Declare log
        </a>
      </PageHead>
      {error && <NotSupported feature="logs" error={error} />}
      {data === undefined && !error && <Loading />}
      {data?.length === 0 && (
        <Card>
          <Empty title="No logs yet">
            <p>
              A log is a queue of type stream. If it has partitions, a group of consumers can share
              it:
            </p>
            <CodeSnippet
              code={logSnippet(url)}
              label="Python program that declares a partitioned log"
            />
          </Empty>
        </Card>
      )}
      {data !== undefined && data.length > 0 && (
        <Card tight>
          <DataTable
            label="Logs"
            testid="logs"
            columns={COLUMNS}
            rows={data}
            rowKey={(log) => `${log.vhost}\n${log.name}`}
          />
        </Card>
      )}
    </>
  );
}
