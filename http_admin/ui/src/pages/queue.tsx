import { apiPath, get, remove } from '../api/client';
import { useLive, useOnce } from '../api/live';
import type { Binding, Exchange, Log, Queue, QueueDetails } from '../api/types';
import { BindForm, BindingTable } from '../components/bindings';
import { Card, Empty } from '../components/card';
import { CodeSnippet } from '../components/code-snippet';
import { ConsumerTable } from '../components/consumer-table';
import { confirmLoss } from '../components/dialog';
import { ArgumentList, KeyValueList } from '../components/key-value-list';
import { PartitionConsumers, PartitionedLogOverview } from '../components/log-overview';
import { LogRecords } from '../components/log-records';
import { PageHead, Tabs } from '../components/page-head';
import { PublishForm } from '../components/publish-form';
import { BrowseMessages, GetMessages } from '../components/queue-messages';
import { Stat, Stats } from '../components/stats';
import { ErrorNote, Loading, LostDataNote } from '../components/status-notes';
import { attempt } from '../components/toasts';
import { TrafficCharts } from '../components/traffic-charts';
import { bytes, count, duration, plural, rate } from '../lib/format';
import { useStored } from '../lib/hooks';
import { type LogOfQueue, useLogOfQueue } from '../lib/log-of-queue';
import { lossText } from '../lib/logs';
import { navigate, useRoute } from '../lib/navigation';
import { href } from '../lib/route';
import { type Range, rangeOf, SHORT_RANGES, sampleQuery } from '../lib/series';
import { useScope } from '../lib/session';
import { amqpUrl, consumeSnippet } from '../lib/snippets';
import { QueueBadges } from './queues';

const TABS = [
  { id: 'overview', label: 'Overview' },
  { id: 'messages', label: 'Messages' },
  { id: 'publish', label: 'Publish' },
  { id: 'bindings', label: 'Bindings' },
] as const;

/** The queue as it is now: a confirmation must not show counts that are seconds old. */
async function reload(queue: Queue): Promise<Queue> {
  try {
    return await get<Queue>(apiPath('queues', queue.vhost, queue.name));
  } catch {
    return queue;
  }
}

async function purge(shown: Queue, refresh: () => Promise<void>): Promise<void> {
  const queue = await reload(shown);
  const unacked = queue.messages_unacknowledged;
  const rest = unacked === 0 ? '' : ` ${plural(unacked, 'unacknowledged message')} will stay.`;
  const confirmed = await confirmLoss({
    title: `Purge ${queue.name}?`,
    loss: `${plural(queue.messages_ready, 'ready message')} will be lost.${rest} This cannot be undone.`,
    action: 'Purge queue',
  });
  if (
    confirmed &&
    (await attempt(
      () => remove(apiPath('queues', queue.vhost, queue.name, 'contents')),
      `Queue ${queue.name} purged.`,
    ))
  )
    await refresh();
}

/** What is lost with the queue. The records of a log are counted in its partitions. */
async function deletionLoss(queue: Queue): Promise<string> {
  const plain = `The queue, its bindings and ${plural(queue.messages, 'message')} will be lost`;
  if (queue.type !== 'stream') return plain;
  return get<Log>(apiPath('logs', queue.vhost, queue.name)).then(lossText, () => plain);
}

async function deleteQueue(shown: Queue): Promise<void> {
  const queue = await reload(shown);
  const loss = await deletionLoss(queue);
  const cancelled =
    queue.consumers === 0 ? '' : `, and ${plural(queue.consumers, 'consumer')} cancelled`;
  const confirmed = await confirmLoss({
    title: `Delete ${queue.name}?`,
    loss: `${loss}${cancelled}. This cannot be undone.`,
    action: queue.type === 'stream' ? 'Delete log' : 'Delete queue',
  });
  if (
    confirmed &&
    (await attempt(
      () => remove(apiPath('queues', queue.vhost, queue.name)),
      `${queue.type === 'stream' ? 'Log' : 'Queue'} ${queue.name} deleted.`,
    ))
  )
    navigate('#/queues');
}

function QueueStats({ queue }: { queue: Queue }) {
  const isUnconsumed = queue.messages_ready > 0 && queue.consumers === 0 && queue.type !== 'stream';
  return (
    <Stats>
      <Stat
        label="Ready"
        value={count(queue.messages_ready)}
        note={
          queue.message_bytes_ready === undefined ? undefined : bytes(queue.message_bytes_ready)
        }
        testid="ready"
      />
      <Stat
        label="Unacknowledged"
        value={count(queue.messages_unacknowledged)}
        note={
          queue.message_bytes_unacknowledged === undefined
            ? undefined
            : bytes(queue.message_bytes_unacknowledged)
        }
        testid="unacked"
      />
      <Stat
        label="Oldest ready"
        value={duration(queue.oldest_ready_age_ms)}
        note={
          queue.oldest_unacked_age_ms
            ? `unacked: ${duration(queue.oldest_unacked_age_ms)}`
            : undefined
        }
      />
      <Stat
        label="In"
        value={rate(queue.message_stats?.publish_details?.rate ?? 0)}
        note={`${count(queue.message_stats?.publish ?? 0)} in total`}
      />
      <Stat
        label="Out"
        value={rate(queue.message_stats?.deliver_get_details?.rate ?? 0)}
        note={`${count(queue.message_stats?.ack ?? 0)} acknowledged`}
      />
      <Stat
        label="Consumers"
        value={count(queue.consumers)}
        tone={isUnconsumed ? 'warn' : 'plain'}
        note={isUnconsumed ? 'messages but no consumer' : undefined}
      />
    </Stats>
  );
}

/** The policies that apply to a queue, and their combined definition. */
function PolicyCard({ queue }: { queue: Queue }) {
  if (!queue.policy && !queue.operator_policy)
    return (
      <Card title="Policy" testid="policy">
        <p class="muted">No policy applies.</p>
      </Card>
    );
  return (
    <Card title="Policy" testid="policy">
      <KeyValueList
        items={[
          ['Policy', queue.policy && <a href="#/policies">{queue.policy}</a>],
          [
            'Operator policy',
            queue.operator_policy && <a href="#/policies">{queue.operator_policy}</a>,
          ],
        ]}
      />
      <p class="muted card-lead gap-top">
        The combined definition. If an argument sets the same limit, the smaller one applies.
      </p>
      <ArgumentList table={queue.effective_policy_definition} />
    </Card>
  );
}

interface OverviewProps {
  queue: QueueDetails;
  logOfQueue: LogOfQueue;
  range: Range;
  onRange: (id: string) => void;
}

function OverviewTab({ queue, logOfQueue, range, onRange }: OverviewProps) {
  const scope = useScope();
  const url = amqpUrl(scope.overview, scope.session.name, queue.vhost, location.hostname);
  const consumers = queue.consumer_details;
  const isLog = queue.type === 'stream';
  return (
    <>
      {logOfQueue.log?.partitioned && !logOfQueue.isPartition ? (
        <PartitionedLogOverview queue={queue} log={logOfQueue.log} />
      ) : (
        <>
          <QueueStats queue={queue} />
          <TrafficCharts
            totals={queue}
            stats={queue.message_stats}
            range={range}
            ranges={SHORT_RANGES}
            onRange={onRange}
          />
        </>
      )}
      <Card title="Consumers">
        {consumers.length > 0 ? (
          <ConsumerTable consumers={consumers} of="queue" />
        ) : logOfQueue.isPartition && logOfQueue.log ? (
          <PartitionConsumers log={logOfQueue.log} />
        ) : (
          <Empty title="No consumers">
            <p>
              {isLog
                ? 'This program reads the log from its first record:'
                : 'This program consumes messages from the queue:'}
            </p>
            <CodeSnippet
              code={consumeSnippet(url, queue.name, isLog)}
              label="Python program that consumes"
            />
          </Empty>
        )}
      </Card>
      <div class="columns">
        <Card title="Properties">
          <KeyValueList
            items={[
              ['Type', queue.type],
              ['State', queue.state],
              ['Durable', queue.durable ? 'yes' : 'no'],
              ['Auto-delete', queue.auto_delete ? 'yes' : 'no'],
              ['Exclusive', queue.exclusive ? 'yes' : 'no'],
            ]}
          />
          <div class="gap-top">
            <ArgumentList table={queue.arguments} none="No arguments." />
          </div>
        </Card>
        <PolicyCard queue={queue} />
      </div>
    </>
  );
}

/** A log is read by offset; the messages of other queues are browsed or fetched. */
function MessagesTab({ queue, logOfQueue }: { queue: Queue; logOfQueue: LogOfQueue }) {
  if (queue.type !== 'stream')
    return (
      <div class="stack">
        <BrowseMessages queue={queue} />
        <GetMessages queue={queue} />
      </div>
    );
  if (logOfQueue.log === undefined) return <Loading />;
  return (
    <LogRecords
      log={logOfQueue.log}
      first={logOfQueue.log.partitions.find((item) => item.queue === queue.name)?.index}
    />
  );
}

function BindingsTab({ queue }: { queue: Queue }) {
  const bindings = useLive<Binding[]>(apiPath('queues', queue.vhost, queue.name, 'bindings'));
  const exchanges = useOnce<Exchange[]>(apiPath('exchanges', queue.vhost));
  const explicit = (bindings.data ?? []).filter((binding) => binding.source !== '');
  const names = (exchanges.data ?? [])
    .map((exchange) => exchange.name)
    .filter((name) => name !== '');
  return (
    <>
      <Card title="Bindings">
        {bindings.error && <ErrorNote error={bindings.error} />}
        <p class="muted card-lead">
          The default exchange is always bound to this queue by its name.
        </p>
        {explicit.length > 0 ? (
          <BindingTable
            bindings={explicit}
            show="source"
            label="Bindings of this queue"
            onChange={() => void bindings.refresh()}
          />
        ) : (
          <p>No other bindings.</p>
        )}
      </Card>
      <Card title="Bind to an exchange">
        <BindForm
          vhost={queue.vhost}
          queue={queue.name}
          names={names}
          onDone={() => void bindings.refresh()}
        />
      </Card>
    </>
  );
}

export function QueuePage({ vhost, name }: { vhost: string; name: string }) {
  const { query } = useRoute();
  const [rangeId, setRange] = useStored('leveret.range', '1m');
  const tab = TABS.find((item) => item.id === query.tab)?.id ?? 'overview';
  const live = useLive<QueueDetails>(
    `${apiPath('queues', vhost, name)}?${sampleQuery(rangeOf(rangeId, SHORT_RANGES))}`,
  );
  const parent = { label: 'Queues', to: '#/queues' };
  const queue = live.data;
  const logOfQueue = useLogOfQueue(vhost, name, queue);
  if (queue === undefined) {
    return (
      <>
        <PageHead title={name} parent={parent} />
        {live.error ? <ErrorNote error={live.error} /> : <Loading />}
      </>
    );
  }
  return (
    <>
      <PageHead
        title={name}
        parent={parent}
        sub={
          <>
            in {vhost} <QueueBadges queue={queue} />
          </>
        }
      >
        {logOfQueue.log && (
          <a class="button" data-testid="to-log" href={href(['logs', vhost, logOfQueue.log.name])}>
            {logOfQueue.isPartition ? `Partition of ${logOfQueue.log.name}` : 'Show log'}
          </a>
        )}
        {queue.type !== 'stream' && (
          <button
            type="button"
            class="button button-danger"
            data-testid="purge"
            onClick={() => void purge(queue, live.refresh)}
          >
            Purge
          </button>
        )}
        {logOfQueue.isKnown && !logOfQueue.isPartition && (
          <button
            type="button"
            class="button button-danger"
            data-testid="delete"
            onClick={() => void deleteQueue(queue)}
          >
            Delete
          </button>
        )}
      </PageHead>
      {live.error && <ErrorNote error={live.error} />}
      <LostDataNote texts={queue.lost_data} />
      <Tabs path={['queues', vhost, name]} tabs={TABS} current={tab} label="Views of this queue" />
      {tab === 'overview' && (
        <OverviewTab
          queue={queue}
          logOfQueue={logOfQueue}
          range={rangeOf(rangeId, SHORT_RANGES)}
          onRange={setRange}
        />
      )}
      {tab === 'messages' && <MessagesTab queue={queue} logOfQueue={logOfQueue} />}
      {tab === 'publish' && (
        <Card title="Publish to this queue">
          <p class="muted card-lead">Published to the default exchange with routing key {name}.</p>
          <PublishForm vhost={vhost} exchange="" fixedKey={name} />
        </Card>
      )}
      {tab === 'bindings' && <BindingsTab queue={queue} />}
    </>
  );
}
