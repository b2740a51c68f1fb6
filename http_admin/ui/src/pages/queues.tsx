import { useRef } from 'preact/hooks';
import { apiPath } from '../api/client';
import type { Queue } from '../api/types';
import { Badge } from '../components/badge';
import { Card, Empty } from '../components/card';
import { CodeSnippet } from '../components/code-snippet';
import { type Column, DataTable, FilterBox, Pager } from '../components/data-table';
import { Icon } from '../components/icon';
import { QueueLink } from '../components/links';
import { PageHead } from '../components/page-head';
import { Sparkline } from '../components/sparkline';
import { ErrorNote, Loading } from '../components/status-notes';
import { count, duration, plural, rate } from '../lib/format';
import { useListState, usePage } from '../lib/list-state';
import { deadLetterExchange } from '../lib/messages';
import { href } from '../lib/route';
import { levels } from '../lib/series';
import { defaultVhost, useScope } from '../lib/session';
import { amqpUrl, publishSnippet } from '../lib/snippets';

const SPARK_POINTS = 40;
const SAMPLES = 'lengths_age=600&lengths_incr=30';

type Depths = Map<string, number[]>;

const keyOf = (queue: Queue): string => `${queue.vhost}\n${queue.name}`;

/** The depths to draw: the server's samples or, until there are two, those this page has seen. */
function useDepths(items: readonly Queue[] | undefined): Depths {
  const seen = useRef<{ items?: readonly Queue[]; depths: Depths }>({ depths: new Map() });
  if (items !== undefined && items !== seen.current.items) {
    const next: Depths = new Map();
    for (const queue of items) {
      const samples = [...levels(queue.messages_details).values()];
      const ownSamples = [...(seen.current.depths.get(keyOf(queue)) ?? []), queue.messages].slice(
        -SPARK_POINTS,
      );
      next.set(keyOf(queue), samples.length > 1 ? samples : ownSamples);
    }
    seen.current = { items, depths: next };
  }
  return seen.current.depths;
}

/** A log with partitions has no messages itself: each partition is a queue. */
function partitionCount(queue: Queue): number {
  return queue.type === 'stream' ? Number(queue.arguments['x-partitions'] ?? 0) : 0;
}

function typeLabel(queue: Queue): string {
  if (queue.type !== 'stream') return queue.type;
  return partitionCount(queue) > 0 ? `log, ${plural(partitionCount(queue), 'partition')}` : 'log';
}

export function QueueBadges({ queue }: { queue: Queue }) {
  return (
    <span class="badges">
      {queue.type !== 'classic' && <Badge tone="info">{typeLabel(queue)}</Badge>}
      {!queue.durable && <Badge title="Does not survive a restart">transient</Badge>}
      {queue.exclusive && (
        <Badge title="Only the connection that declared it can use it">exclusive</Badge>
      )}
      {queue.auto_delete && (
        <Badge title="Deleted when its last consumer is cancelled">auto-delete</Badge>
      )}
      {deadLetterExchange(queue) !== undefined && (
        <Badge title="Has a dead-letter exchange">DLX</Badge>
      )}
      {queue.arguments['x-max-priority'] !== undefined && (
        <Badge title="Messages have priorities">priority</Badge>
      )}
      {queue.policy && <Badge title="Policy">{queue.policy}</Badge>}
    </span>
  );
}

function columnsFor(depths: Depths): Column<Queue>[] {
  return [
    {
      id: 'name',
      title: 'Name',
      sort: 'name',
      render: (queue) => <QueueLink vhost={queue.vhost} name={queue.name} />,
    },
    {
      id: 'features',
      title: 'Features',
      minor: true,
      render: (queue) => <QueueBadges queue={queue} />,
    },
    {
      id: 'depth',
      title: 'Depth',
      minor: true,
      render: (queue) =>
        partitionCount(queue) > 0 ? null : <Sparkline values={depths.get(keyOf(queue)) ?? []} />,
    },
    {
      id: 'ready',
      title: 'Ready',
      sort: 'messages_ready',
      numeric: true,
      render: (queue) => readyCell(queue),
    },
    {
      id: 'unacked',
      title: 'Unacked',
      sort: 'messages_unacknowledged',
      numeric: true,
      minor: true,
      render: (queue) => count(queue.messages_unacknowledged),
    },
    {
      id: 'oldest',
      title: 'Oldest',
      sort: 'oldest_ready_age_ms',
      numeric: true,
      minor: true,
      render: (queue) => duration(queue.oldest_ready_age_ms),
    },
    {
      id: 'in',
      title: 'In',
      sort: 'message_stats.publish_details.rate',
      numeric: true,
      minor: true,
      render: (queue) => rate(queue.message_stats?.publish_details?.rate ?? 0),
    },
    {
      id: 'out',
      title: 'Out',
      sort: 'message_stats.deliver_get_details.rate',
      numeric: true,
      minor: true,
      render: (queue) => rate(queue.message_stats?.deliver_get_details?.rate ?? 0),
    },
    {
      id: 'consumers',
      title: 'Consumers',
      sort: 'consumers',
      numeric: true,
      render: (queue) => consumersCell(queue),
    },
  ];
}

function readyCell(queue: Queue) {
  if (partitionCount(queue) === 0) return count(queue.messages_ready);
  return (
    <a href={href(['logs', queue.vhost, queue.name])} title="The records are in the partitions">
      log
    </a>
  );
}

function consumersCell(queue: Queue) {
  const isUnconsumed = queue.consumers === 0 && queue.messages_ready > 0 && queue.type !== 'stream';
  return isUnconsumed ? (
    <Badge tone="warn" title="Has messages but no consumer">
      none
    </Badge>
  ) : (
    count(queue.consumers)
  );
}

export function QueuesPage() {
  const scope = useScope();
  const list = useListState(['queues'], { by: 'name', descending: false });
  const base = scope.vhost === '' ? '/api/queues' : apiPath('queues', scope.vhost);
  const { data, error, loading } = usePage<Queue>(base, list, SAMPLES);
  const depths = useDepths(data?.items);
  const url = amqpUrl(scope.overview, scope.session.name, defaultVhost(scope), location.hostname);
  return (
    <>
      <PageHead title="Queues" sub="Messages wait in queues until consumers process them.">
        <a class="button button-main" href={href(['new-queue'])}>
          <Icon name="plus" /> Declare queue
        </a>
      </PageHead>
      {error && <ErrorNote error={error} />}
      {data === undefined && !error && <Loading />}
      {data?.total_count === 0 && (
        <Card>
          <Empty title="No queues yet">
            <p>Declare one with the button above, or run this program:</p>
            <CodeSnippet
              code={publishSnippet(url)}
              label="Python program that declares a queue and publishes to it"
            />
          </Empty>
        </Card>
      )}
      {data !== undefined && data.total_count > 0 && (
        <Card tight>
          <div class="toolbar">
            <FilterBox label="Filter by name" value={list.filter} onInput={list.setFilter} />
          </div>
          <DataTable
            label="Queues"
            testid="queues"
            columns={columnsFor(depths)}
            rows={data.items}
            rowKey={keyOf}
            sorting={list.sorting}
            onSort={list.setSorting}
            busy={loading}
          />
          <Pager data={data} onPage={list.setPage} noun="queues" />
        </Card>
      )}
    </>
  );
}
