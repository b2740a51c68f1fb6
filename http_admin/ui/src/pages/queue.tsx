import { apiPath, get, remove } from '../api/client';
import { useLive, useOnce } from '../api/live';
import type { Binding, Exchange, Log, Queue } from '../api/types';
import { Card, Empty, Facts, PageHead, Snippet, Stat, Stats, TableFacts, Tabs } from '../components/basics';
import { BindForm, BindingTable } from '../components/Bindings';
import { TrafficCharts } from '../components/charts';
import { Consumers } from '../components/Consumers';
import { attempt, confirmLoss, ErrorNote, Loading } from '../components/feedback';
import { ReadThroughLog, WholeLog } from '../components/LogOverview';
import { Browse, GetMessages } from '../components/Messages';
import { Publish } from '../components/Publish';
import { Records } from '../components/Records';
import { bytes, count, duration, plural, rate } from '../lib/format';
import { go, useRoute, useStored } from '../lib/hooks';
import { useLogOf, type LogOfQueue } from '../lib/log-of-queue';
import { lossWords } from '../lib/logs';
import { href } from '../lib/route';
import { rangeOf, sampleQuery, type Range, SHORT_RANGES } from '../lib/series';
import { useScope } from '../lib/session';
import { amqpUrl, consumeSnippet } from '../lib/snippets';
import { QueueBadges } from './queues';

const TABS = [
  { id: 'overview', label: 'Overview' },
  { id: 'messages', label: 'Messages' },
  { id: 'publish', label: 'Publish' },
  { id: 'bindings', label: 'Bindings' },
] as const;

/** The counts in a question are read fresh: the page may be seconds old. */
async function fresh(queue: Queue): Promise<Queue> {
  try {
    return await get<Queue>(apiPath('queues', queue.vhost, queue.name));
  } catch {
    return queue;
  }
}

async function purge(shown: Queue, refresh: () => Promise<void>): Promise<void> {
  const queue = await fresh(shown);
  const held = queue.messages_unacknowledged ?? 0;
  const kept = held === 0 ? '' : ` ${plural(held, 'message')} with a consumer stay.`;
  const yes = await confirmLoss({
    title: `Purge ${queue.name}?`,
    loss: `${plural(queue.messages_ready ?? 0, 'ready message')} will be lost.${kept} This cannot be undone.`,
    action: 'Purge queue',
  });
  if (yes && (await attempt(() => remove(apiPath('queues', queue.vhost, queue.name, 'contents')), `${queue.name} is purged.`))) await refresh();
}

/** A log in partitions has no messages itself: they are counted where they are. */
async function lossOf(queue: Queue): Promise<string> {
  const plain = `The queue, its bindings and ${plural(queue.messages ?? 0, 'message')} will be lost`;
  if (queue.type !== 'stream') return plain;
  return get<Log>(apiPath('logs', queue.vhost, queue.name)).then(lossWords, () => plain);
}

async function deleteQueue(shown: Queue): Promise<void> {
  const queue = await fresh(shown);
  const loss = await lossOf(queue);
  const readers = queue.consumers ?? 0;
  const cut = readers === 0 ? '' : `, and ${plural(readers, 'consumer')} cut off`;
  const yes = await confirmLoss({
    title: `Delete ${queue.name}?`,
    loss: `${loss}${cut}. This cannot be undone.`,
    action: queue.type === 'stream' ? 'Delete log' : 'Delete queue',
  });
  if (yes && (await attempt(() => remove(apiPath('queues', queue.vhost, queue.name)), `${queue.name} is deleted.`))) go('#/queues');
}

function Numbers({ queue }: { queue: Queue }) {
  const lonely = (queue.messages_ready ?? 0) > 0 && queue.consumers === 0 && queue.type !== 'stream';
  return (
    <Stats>
      <Stat label="Ready" value={count(queue.messages_ready)} note={bytes(queue.message_bytes_ready ?? queue.message_bytes)} testid="ready" />
      <Stat label="Unacknowledged" value={count(queue.messages_unacknowledged)} note={queue.message_bytes_unacknowledged === undefined ? undefined : bytes(queue.message_bytes_unacknowledged)} testid="unacked" />
      <Stat label="Oldest ready" value={duration(queue.oldest_ready_age_ms)} note={queue.oldest_unacked_age_ms ? `unacked: ${duration(queue.oldest_unacked_age_ms)}` : undefined} />
      <Stat label="In" value={rate(queue.message_stats?.publish_details?.rate ?? 0)} note={`${count(queue.message_stats?.publish ?? 0)} in all`} />
      <Stat label="Out" value={rate(queue.message_stats?.deliver_get_details?.rate ?? 0)} note={`${count(queue.message_stats?.ack ?? 0)} acknowledged`} />
      <Stat label="Consumers" value={count(queue.consumers)} tone={lonely ? 'warn' : 'plain'} note={lonely ? 'nobody takes messages' : undefined} />
    </Stats>
  );
}

/** The names of what governs a queue, and what of it holds. */
function PolicyCard({ queue }: { queue: Queue }) {
  if (!queue.policy && !queue.operator_policy) return <Card title="Policy" testid="policy"><p class="muted">No policy applies.</p></Card>;
  return (
    <Card title="Policy" testid="policy">
      <Facts items={[
        ['Policy', queue.policy && <a href="#/policies">{queue.policy}</a>],
        ['Operator policy', queue.operator_policy && <a href="#/policies">{queue.operator_policy}</a>],
      ]} />
      <p class="muted card-lead gap-top">What they ask for; where an argument sets the same limit, the smaller holds.</p>
      <TableFacts table={queue.effective_policy_definition} />
    </Card>
  );
}

interface OverviewProps {
  queue: Queue;
  own: LogOfQueue;
  range: Range;
  onRange: (id: string) => void;
}

function OverviewTab({ queue, own, range, onRange }: OverviewProps) {
  const scope = useScope();
  const url = amqpUrl(scope.overview, scope.session.name, queue.vhost, location.hostname);
  const consumers = queue.consumer_details ?? [];
  const isLog = queue.type === 'stream';
  return (
    <>
      {own.log?.partitioned && !own.isPartition ? <WholeLog queue={queue} log={own.log} /> : (
        <>
          <Numbers queue={queue} />
          <TrafficCharts totals={queue} stats={queue.message_stats} range={range} ranges={SHORT_RANGES} onRange={onRange} />
        </>
      )}
      <Card title="Consumers">
        {consumers.length > 0 ? <Consumers consumers={consumers} of="queue" /> : own.isPartition && own.log ? <ReadThroughLog log={own.log} /> : (
          <Empty title="No consumer">
            <p>{isLog ? 'This program reads the log from its first record; nothing is taken away:' : 'This program takes messages from the queue, one after the other:'}</p>
            <Snippet code={consumeSnippet(url, queue.name, isLog)} label="Python program that consumes" />
          </Empty>
        )}
      </Card>
      <div class="columns">
        <Card title="Declared with">
          <Facts items={[['Type', queue.type], ['State', queue.state], ['Durable', queue.durable ? 'yes' : 'no'], ['Auto-delete', queue.auto_delete ? 'yes' : 'no'], ['Exclusive', queue.exclusive ? 'yes' : 'no']]} />
          <div class="gap-top"><TableFacts table={queue.arguments} none="No arguments." /></div>
        </Card>
        <PolicyCard queue={queue} />
      </div>
    </>
  );
}

/** A log is read by offset; a queue's messages are browsed and taken. */
function MessagesTab({ queue, own }: { queue: Queue; own: LogOfQueue }) {
  if (queue.type !== 'stream') return <div class="stack"><Browse queue={queue} /><GetMessages queue={queue} /></div>;
  if (own.log === undefined) return <Loading />;
  return <Records log={own.log} first={own.log.partitions.find((one) => one.queue === queue.name)?.index} />;
}

function BindingsTab({ queue }: { queue: Queue }) {
  const bindings = useLive<Binding[]>(apiPath('queues', queue.vhost, queue.name, 'bindings'));
  const exchanges = useOnce<Exchange[]>(apiPath('exchanges', queue.vhost));
  const named = (bindings.data ?? []).filter((one) => one.source !== '');
  const names = (exchanges.data ?? []).map((one) => one.name).filter((name) => name !== '');
  return (
    <>
      <Card title="Bindings">
        {bindings.error && <ErrorNote error={bindings.error} />}
        <p class="muted card-lead">The default exchange always reaches this queue by its name.</p>
        {named.length > 0 ? <BindingTable bindings={named} show="source" label="Bindings of this queue" onChange={() => void bindings.refresh()} /> : <p>No other exchange sends here yet.</p>}
      </Card>
      <Card title="Bind to an exchange"><BindForm vhost={queue.vhost} queue={queue.name} names={names} onDone={() => void bindings.refresh()} /></Card>
    </>
  );
}

export function QueuePage({ vhost, name }: { vhost: string; name: string }) {
  const { query } = useRoute();
  const [rangeId, setRange] = useStored('leveret.range', '1m');
  const tab = TABS.find((one) => one.id === query['tab'])?.id ?? 'overview';
  const live = useLive<Queue>(`${apiPath('queues', vhost, name)}?${sampleQuery(rangeOf(rangeId, SHORT_RANGES))}`);
  const parent = { label: 'Queues', to: '#/queues' };
  const queue = live.data;
  const own = useLogOf(vhost, name, queue);
  if (queue === undefined) {
    return <><PageHead title={name} parent={parent} />{live.error ? <ErrorNote error={live.error} /> : <Loading />}</>;
  }
  return (
    <>
      <PageHead title={name} parent={parent} sub={<>in {vhost} <QueueBadges queue={queue} /></>}>
        {own.log && <a class="button" data-testid="to-log" href={href(['logs', vhost, own.log.name])}>{own.isPartition ? `Partition of ${own.log.name}` : 'Show the log'}</a>}
        {queue.type !== 'stream' && <button class="button button-danger" data-testid="purge" onClick={() => void purge(queue, live.refresh)}>Purge</button>}
        {own.isKnown && !own.isPartition && <button class="button button-danger" data-testid="delete" onClick={() => void deleteQueue(queue)}>Delete</button>}
      </PageHead>
      {live.error && <ErrorNote error={live.error} />}
      <Tabs path={['queues', vhost, name]} tabs={TABS} current={tab} label="Parts of this queue" />
      {tab === 'overview' && <OverviewTab queue={queue} own={own} range={rangeOf(rangeId, SHORT_RANGES)} onRange={setRange} />}
      {tab === 'messages' && <MessagesTab queue={queue} own={own} />}
      {tab === 'publish' && <Card title="Publish to this queue"><p class="muted card-lead">Through the default exchange, straight into {name}.</p><Publish vhost={vhost} exchange="" fixedKey={name} /></Card>}
      {tab === 'bindings' && <BindingsTab queue={queue} />}
    </>
  );
}
