import type { ApiError } from '../api/client';
import { useLive } from '../api/live';
import type { Node, Overview, Page, Queue } from '../api/types';
import { Badge, Card, Empty, Facts, Meter, PageHead, Snippet, Stat, Stats } from '../components/basics';
import { TrafficCharts } from '../components/charts';
import { DataTable, type Column } from '../components/DataTable';
import { ErrorNote, Loading } from '../components/feedback';
import { Icon } from '../components/Icon';
import { QueueLink } from '../components/links';
import { bytes, count, duration, plural, rate } from '../lib/format';
import { useStored } from '../lib/hooks';
import { href } from '../lib/route';
import { rangeOf, sampleQuery } from '../lib/series';
import { homeVhost, mayMonitor, useScope } from '../lib/session';
import { amqpUrl, publishSnippet } from '../lib/snippets';

const MOST_PILES = 8;
// More than are shown: logs are left out, since their records stay after reading.
const PILE_QUERY = 'page=1&page_size=40&sort=messages&sort_reverse=true';

interface Health {
  tone: 'good' | 'warn' | 'bad';
  title: string;
  detail: string;
}

/** One verdict from alarms and from the place where messages pile up without anyone taking them. */
function verdict(nodes: readonly Node[] | undefined, piles: readonly Queue[], check: ApiError | undefined): Health {
  const alarms = (nodes ?? []).flatMap((node) => [
    ...(node.mem_alarm ? [`${node.name} is out of memory: publishers are held back until it is freed.`] : []),
    ...(node.disk_free_alarm ? [`${node.name} is short of disk space: publishers are held back until some is free.`] : []),
    ...(node.running === false ? [`${node.name} is not running.`] : []),
  ]);
  // Who may not see the nodes still learns of an alarm from the health check.
  if (alarms.length === 0 && check?.status === 503) alarms.push(check.message);
  if (alarms.length > 0) return { tone: 'bad', title: plural(alarms.length, 'alarm'), detail: alarms.join(' ') };
  const left = piles.filter((queue) => (queue.messages_ready ?? 0) > 0 && (queue.consumers ?? 0) === 0);
  if (left.length > 0) {
    const names = left.slice(0, 3).map((queue) => queue.name).join(', ');
    const more = left.length > 3 ? ` and ${left.length - 3} more` : '';
    return { tone: 'warn', title: 'Running, with messages nobody takes', detail: `No consumer on ${names}${more}.` };
  }
  return { tone: 'good', title: 'All is well', detail: 'No alarms, and every queue with messages has a consumer.' };
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

const PILE_COLUMNS: readonly Column<Queue>[] = [
  { id: 'name', title: 'Queue', render: (queue) => <QueueLink vhost={queue.vhost} name={queue.name} /> },
  { id: 'ready', title: 'Ready', numeric: true, render: (queue) => count(queue.messages_ready) },
  { id: 'age', title: 'Oldest', numeric: true, minor: true, render: (queue) => duration(queue.oldest_ready_age_ms) },
  { id: 'consumers', title: 'Consumers', numeric: true,
    render: (queue) => (queue.consumers === 0 ? <Badge tone="warn">none</Badge> : count(queue.consumers)) },
];

function Piles({ queues }: { queues: readonly Queue[] }) {
  const waiting = queues.filter((queue) => (queue.messages ?? 0) > 0).slice(0, MOST_PILES);
  return (
    <Card title="Where messages wait" testid="piles" aside={<a href={href(['queues'], { sort: 'messages_ready', desc: 1 })}>All queues</a>}>
      {waiting.length === 0 ? (
        <p class="muted">No queue holds a message right now.</p>
      ) : (
        <DataTable label="Queues with the most messages" columns={PILE_COLUMNS} rows={waiting} rowKey={(queue) => `${queue.vhost}\n${queue.name}`} />
      )}
    </Card>
  );
}

function NodeCard({ node }: { node: Node }) {
  return (
    <Card title={node.name} aside={<Badge tone={node.running === false ? 'bad' : 'good'}>{node.running === false ? 'down' : 'running'}</Badge>}>
      {node.mem_limit !== undefined && node.mem_used !== undefined && (
        <Meter label="Memory" part={node.mem_used} total={node.mem_limit} text={`${bytes(node.mem_used)} of ${bytes(node.mem_limit)}`} />
      )}
      {node.fd_total !== undefined && node.fd_used !== undefined && (
        <Meter label="Open files" part={node.fd_used} total={node.fd_total} text={`${count(node.fd_used)} of ${count(node.fd_total)}`} />
      )}
      <div class="gap-top">
        <Facts items={[
          ['Disk free', node.disk_free === undefined ? undefined : `${bytes(node.disk_free)} (alarm below ${bytes(node.disk_free_limit)})`],
          ['Up for', duration(node.uptime)],
        ]} />
      </div>
    </Card>
  );
}

function Totals({ data }: { data: Overview }) {
  const totals = data.queue_totals ?? {};
  const stats = data.message_stats;
  const objects = data.object_totals ?? {};
  return (
    <Stats>
      <Stat label="Ready" value={count(totals.messages_ready ?? 0)} note="in queues and logs" testid="total-ready" />
      <Stat label="Unacknowledged" value={count(totals.messages_unacknowledged ?? 0)} note="with a consumer" testid="total-unacked" />
      <Stat label="Published" value={rate(stats?.publish_details?.rate ?? 0)} note={`${count(stats?.publish ?? 0)} in all`} />
      <Stat label="Delivered" value={rate(stats?.deliver_get_details?.rate ?? 0)} note={`${count(stats?.deliver_get ?? 0)} in all`} />
      <Stat label="Connections" value={count(objects.connections)} note={plural(objects.channels ?? 0, 'channel')} />
      <Stat label="Queues" value={count(objects.queues)} note={`${plural(objects.consumers ?? 0, 'consumer')}, ${plural(objects.exchanges ?? 0, 'exchange')}`} />
    </Stats>
  );
}

function FirstSteps({ data }: { data: Overview }) {
  const scope = useScope();
  const url = amqpUrl(data, scope.session.name, homeVhost(scope), location.hostname);
  return (
    <Card title="First steps">
      <Empty title="No queue yet">
        <p>Run this, and the first message shows up here. It needs <code>pip install pika</code>.</p>
        <Snippet code={publishSnippet(url)} label="Python program that publishes a message" />
        <div class="actions"><a class="button" href={href(['new-queue'])}>Declare a queue here instead</a></div>
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
  const piles = useLive<Page<Queue>>(`${base}?${PILE_QUERY}`);
  const nodes = useLive<Node[]>(mayMonitor(session) ? '/api/nodes' : null);
  const alarms = useLive<unknown>('/api/health/checks/alarms');
  const data = overview.data;
  if (data === undefined) return overview.error ? <ErrorNote error={overview.error} /> : <Loading />;
  const queues = (piles.data?.items ?? []).filter((queue) => queue.type !== 'stream');
  return (
    <>
      <PageHead title="Overview" sub={data.cluster_name} />
      {overview.error && <ErrorNote error={overview.error} />}
      {piles.data && <HealthBanner health={verdict(nodes.data, queues, alarms.error)} />}
      <Totals data={data} />
      {data.object_totals?.queues === 0 && <FirstSteps data={data} />}
      <TrafficCharts totals={data.queue_totals ?? {}} stats={data.message_stats} range={range} onRange={setRange} />
      <div class="columns">
        <Piles queues={queues} />
        <div class="stack">
          {(nodes.data ?? []).map((node) => <NodeCard key={node.name} node={node} />)}
          <Card title="Listening on">
            <Facts items={(data.listeners ?? []).map((one) => [one.protocol, `${one.ip_address} : ${one.port}`] as const)} />
          </Card>
        </div>
      </div>
    </>
  );
}
