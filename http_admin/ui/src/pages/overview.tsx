import type { ApiError } from '../api/client';
import { useLive, useOnce } from '../api/live';
import type { DiskUsage, LostData, Node, Overview, Page, Queue } from '../api/types';
import { Badge } from '../components/badge';
import { Card, Empty } from '../components/card';
import { CodeSnippet } from '../components/code-snippet';
import { type Column, DataTable } from '../components/data-table';
import { Icon } from '../components/icon';
import { KeyValueList } from '../components/key-value-list';
import { QueueLink } from '../components/links';
import { PageHead } from '../components/page-head';
import { Meter, Stat, Stats } from '../components/stats';
import { ErrorNote, Loading, LostDataNote } from '../components/status-notes';
import { TrafficCharts } from '../components/traffic-charts';
import { bytes, count, duration, plural, rate } from '../lib/format';
import { useStored } from '../lib/hooks';
import { href } from '../lib/route';
import { rangeOf, sampleQuery } from '../lib/series';
import { canMonitor, defaultVhost, useScope } from '../lib/session';
import { amqpUrl, publishSnippet } from '../lib/snippets';

const MAX_QUEUES_SHOWN = 8;
// More than are shown, because logs are left out: their records stay after they are read.
const LONGEST_QUEUES_QUERY = 'page=1&page_size=40&sort=messages&sort_reverse=true';

interface Health {
  tone: 'good' | 'warn' | 'bad';
  title: string;
  detail: string;
}

function reasonOf(node: Node, alarm: string): string {
  return node.alarms.find(({ name }) => name === alarm)?.reason ?? 'see the log of the broker';
}

/** Alarms, or else queues that have messages but no consumer. */
function healthOf(
  nodes: readonly Node[] | undefined,
  longestQueues: readonly Queue[],
  hasMoreQueues: boolean,
  alarmCheck: ApiError | undefined,
): Health {
  const alarms = (nodes ?? []).flatMap((node) => [
    ...(node.mem_alarm
      ? [`${node.name} is out of memory: publishers are blocked until memory is free.`]
      : []),
    ...(node.disk_free_alarm
      ? [
          `${node.name} is low on disk space: publishers are blocked until space is free (${reasonOf(node, 'disk')}).`,
        ]
      : []),
    ...(!node.running ? [`${node.name} is not running.`] : []),
  ]);
  // Users without access to the nodes see alarms by the health check.
  if (alarms.length === 0 && alarmCheck?.status === 503) alarms.push(alarmCheck.message);
  if (alarms.length > 0)
    return { tone: 'bad', title: plural(alarms.length, 'alarm'), detail: alarms.join(' ') };
  const unconsumed = longestQueues.filter(
    (queue) => queue.messages_ready > 0 && queue.consumers === 0,
  );
  if (unconsumed.length > 0) {
    const names = unconsumed
      .slice(0, 3)
      .map((queue) => queue.name)
      .join(', ');
    const more = unconsumed.length > 3 ? ` and ${unconsumed.length - 3} more` : '';
    return {
      tone: 'warn',
      title: `${hasMoreQueues ? 'At least ' : ''}${plural(unconsumed.length, 'queue has', 'queues have')} messages but no consumer`,
      detail: `${names}${more}.`,
    };
  }
  return {
    tone: 'good',
    title: 'Healthy',
    detail: 'No alarms, and every queue with messages has a consumer.',
  };
}

function HealthBanner({ health }: { health: Health }) {
  return (
    <div class={`health health-${health.tone}`} role="status" data-testid="health">
      <Icon name={health.tone === 'good' ? 'check' : 'warn'} size={26} />
      <div>
        <h2>{health.title}</h2>
        <p>{health.detail}</p>
      </div>
    </div>
  );
}

const QUEUE_COLUMNS: readonly Column<Queue>[] = [
  {
    id: 'name',
    title: 'Queue',
    render: (queue) => <QueueLink vhost={queue.vhost} name={queue.name} />,
  },
  { id: 'ready', title: 'Ready', numeric: true, render: (queue) => count(queue.messages_ready) },
  {
    id: 'age',
    title: 'Oldest',
    numeric: true,
    minor: true,
    render: (queue) => duration(queue.oldest_ready_age_ms),
  },
  {
    id: 'consumers',
    title: 'Consumers',
    numeric: true,
    render: (queue) =>
      queue.consumers === 0 ? <Badge tone="warn">none</Badge> : count(queue.consumers),
  },
];

function LongestQueues({ queues }: { queues: readonly Queue[] }) {
  const shown = queues.filter((queue) => queue.messages > 0).slice(0, MAX_QUEUES_SHOWN);
  return (
    <Card
      title="Longest queues"
      testid="longest-queues"
      aside={<a href={href(['queues'], { sort: 'messages_ready', desc: 1 })}>All queues</a>}
    >
      {shown.length === 0 ? (
        <p class="muted">All queues are empty.</p>
      ) : (
        <DataTable
          label="Queues with the most messages"
          columns={QUEUE_COLUMNS}
          rows={shown}
          rowKey={(queue) => `${queue.vhost}\n${queue.name}`}
        />
      )}
    </Card>
  );
}

/** What uses the volume, largest first; free pages belong to the database file. */
function diskUses(usage: DiskUsage): string {
  const uses: [string, number][] = [
    ['messages', usage.messages],
    ['history', usage.history],
    ['logs', usage.logs],
    ['write-ahead log', usage.wal],
    ['free pages', usage.free_pages],
    ['other files', usage.other],
  ];
  return uses
    .filter(([, size]) => size > 0)
    .sort(([, a], [, b]) => b - a)
    .map(([use, size]) => `${use} ${bytes(size)}`)
    .join(', ');
}

function NodeCard({ node }: { node: Node }) {
  return (
    <Card
      title={node.name}
      aside={
        <Badge tone={node.running ? 'good' : 'bad'}>{node.running ? 'running' : 'down'}</Badge>
      }
    >
      <Meter
        label="Memory"
        part={node.mem_used}
        total={node.mem_limit}
        text={`${bytes(node.mem_used)} of ${bytes(node.mem_limit)}`}
      />
      <Meter
        label="Open files"
        part={node.fd_used}
        total={node.fd_total}
        text={`${count(node.fd_used)} of ${count(node.fd_total)}`}
      />
      <div class="gap-top">
        <KeyValueList
          items={[
            ['Disk free', `${bytes(node.disk_free)} (alarm below ${bytes(node.disk_free_limit)})`],
            ['Disk used by', node.disk_usage && diskUses(node.disk_usage)],
            ['Uptime', duration(node.uptime)],
          ]}
        />
      </div>
    </Card>
  );
}

function Totals({ data }: { data: Overview }) {
  const { queue_totals: totals, message_stats: stats, object_totals: objects } = data;
  return (
    <Stats>
      <Stat
        label="Ready"
        value={count(totals.messages_ready)}
        note="in queues and logs"
        testid="total-ready"
      />
      <Stat
        label="Unacknowledged"
        value={count(totals.messages_unacknowledged)}
        note="with consumers"
        testid="total-unacked"
      />
      <Stat
        label="Published"
        value={rate(stats.publish_details?.rate ?? 0)}
        note={`${count(stats.publish ?? 0)} in total`}
      />
      <Stat
        label="Delivered"
        value={rate(stats.deliver_get_details?.rate ?? 0)}
        note={`${count(stats.deliver_get ?? 0)} in total`}
      />
      <Stat
        label="Connections"
        value={count(objects.connections)}
        note={plural(objects.channels, 'channel')}
      />
      <Stat
        label="Queues"
        value={count(objects.queues)}
        note={`${plural(objects.consumers, 'consumer')}, ${plural(objects.exchanges, 'exchange')}`}
      />
    </Stats>
  );
}

function FirstSteps({ data }: { data: Overview }) {
  const scope = useScope();
  const url = amqpUrl(data, scope.session.name, defaultVhost(scope), location.hostname);
  return (
    <Card title="First steps">
      <Empty title="No queues yet">
        <p>
          Run this program to publish a first message. It needs <code>pip install pika</code>.
        </p>
        <CodeSnippet code={publishSnippet(url)} label="Python program that publishes a message" />
        <div class="actions">
          <a class="button" href={href(['new-queue'])}>
            Or declare a queue here
          </a>
        </div>
      </Empty>
    </Card>
  );
}

export function OverviewPage() {
  const { session, vhost } = useScope();
  const [rangeId, setRange] = useStored('leveret.range', '1m');
  const range = rangeOf(rangeId);
  const overview = useLive<Overview>(`/api/overview?${sampleQuery(range)}`);
  const base = vhost === '' ? '/api/queues' : `/api/queues/${encodeURIComponent(vhost)}`;
  const longest = useLive<Page<Queue>>(`${base}?${LONGEST_QUEUES_QUERY}`);
  const nodes = useLive<Node[]>(canMonitor(session) ? '/api/nodes' : null);
  const alarms = useLive<unknown>('/api/health/checks/alarms');
  const lost = useOnce<LostData[]>(canMonitor(session) ? '/api/lost-data' : null);
  const data = overview.data;
  if (data === undefined)
    return overview.error ? <ErrorNote error={overview.error} /> : <Loading />;
  const queues = (longest.data?.items ?? []).filter((queue) => queue.type !== 'stream');
  return (
    <>
      <PageHead title="Overview" sub={data.cluster_name} />
      {overview.error && <ErrorNote error={overview.error} />}
      {longest.data && (
        <HealthBanner
          health={healthOf(nodes.data, queues, longest.data.page_count > 1, alarms.error)}
        />
      )}
      <LostDataNote texts={(lost.data ?? []).map((item) => item.text)} />
      <Totals data={data} />
      {data.object_totals.queues === 0 && <FirstSteps data={data} />}
      <TrafficCharts
        totals={data.queue_totals}
        stats={data.message_stats}
        range={range}
        onRange={setRange}
      />
      <div class="columns">
        <LongestQueues queues={queues} />
        <div class="stack">
          {(nodes.data ?? []).map((node) => (
            <NodeCard key={node.name} node={node} />
          ))}
          <Card title="Listeners">
            <KeyValueList
              items={data.listeners.map(
                (listener) =>
                  [listener.protocol, `${listener.ip_address} : ${listener.port}`] as const,
              )}
            />
          </Card>
        </div>
      </div>
    </>
  );
}
