import { useEffect, useMemo } from 'preact/hooks';
import { apiPath, exchangeSegment, remove } from '../api/client';
import { useLive, useOnce } from '../api/live';
import type { Binding, Exchange, Page, Queue } from '../api/types';
import { BindForm, BindingTable } from '../components/bindings';
import { Card } from '../components/card';
import { confirmLoss } from '../components/dialog';
import { ArgumentList, KeyValueList } from '../components/key-value-list';
import { LineChart } from '../components/line-chart';
import { PageHead, Tabs } from '../components/page-head';
import { PublishForm } from '../components/publish-form';
import { ScheduledMessages } from '../components/scheduled-messages';
import { Stat, Stats } from '../components/stats';
import { ErrorNote, Loading } from '../components/status-notes';
import { attempt } from '../components/toasts';
import { TopologyMap } from '../components/topology-map';
import { count, exchangeName, plural, rate } from '../lib/format';
import { navigate, useRoute } from '../lib/navigation';
import { rangeOf, sampleQuery } from '../lib/series';
import { reachable } from '../lib/topology';
import { ExchangeBadges } from './exchanges';

const TABS = [
  { id: 'routing', label: 'Routing' },
  { id: 'bindings', label: 'Bindings' },
  { id: 'publish', label: 'Publish' },
] as const;
const WITH_SCHEDULE = [...TABS, { id: 'scheduled', label: 'Scheduled' }] as const;

async function deleteExchange(exchange: Exchange, bindings: number): Promise<void> {
  const confirmed = await confirmLoss({
    title: `Delete ${exchange.name}?`,
    loss: `The exchange and ${plural(bindings, 'binding')} from it will be deleted. Publishing to it will fail. Messages that are already in queues stay.`,
    action: 'Delete exchange',
  });
  if (
    confirmed &&
    (await attempt(
      () => remove(apiPath('exchanges', exchange.vhost, exchange.name)),
      `Exchange ${exchange.name} deleted.`,
    ))
  )
    navigate('#/exchanges');
}

function RoutingTab({ exchange, bindings }: { exchange: Exchange; bindings: readonly Binding[] }) {
  const reachableBindings = useMemo(
    () => reachable(bindings, exchange.name),
    [bindings, exchange.name],
  );
  const stats = exchange.message_stats;
  const lines = [
    { label: 'In', details: stats?.publish_in_details, color: 3 },
    { label: 'Out', details: stats?.publish_out_details, color: 1 },
  ];
  return (
    <>
      <Card title="Routing" testid="routing">
        {exchange.name === '' ? (
          <p class="muted card-lead">
            The default exchange routes each message to the queue whose name is the routing key.
          </p>
        ) : (
          reachableBindings.length === 0 && (
            <p class="muted card-lead">
              This exchange has no bindings, so messages published to it are dropped. Add binding on
              the Bindings tab.
            </p>
          )
        )}
        <TopologyMap
          vhost={exchange.vhost}
          bindings={reachableBindings}
          start={exchange.name}
          exchanges={[exchange.name]}
        />
      </Card>
      <div class="columns">
        <Card title="Traffic">
          <LineChart title="Messages per second" kind="rate" lines={lines} />
        </Card>
        <Card title="Properties">
          <KeyValueList
            items={[
              ['Type', exchange.type],
              ['Durable', exchange.durable ? 'yes' : 'no'],
              ['Auto-delete', exchange.auto_delete ? 'yes' : 'no'],
              ['Internal', exchange.internal ? 'yes' : 'no'],
              ['Policy', exchange.policy],
            ]}
          />
          <div class="gap-top">
            <ArgumentList table={exchange.arguments} none="No arguments." />
          </div>
        </Card>
      </div>
    </>
  );
}

function BindingsTab({
  exchange,
  all,
  refresh,
}: {
  exchange: Exchange;
  all: readonly Binding[];
  refresh: () => void;
}) {
  const queues = useOnce<Page<Pick<Queue, 'name'>>>(
    `${apiPath('queues', exchange.vhost)}?page=1&page_size=500&columns=name`,
  );
  if (exchange.name === '')
    return (
      <Card>
        <p>Every queue is bound to the default exchange by its name. This cannot be changed.</p>
      </Card>
    );
  const outgoing = all.filter((binding) => binding.source === exchange.name);
  const incoming = all.filter(
    (binding) => binding.destination === exchange.name && binding.destination_type === 'exchange',
  );
  return (
    <>
      <Card title="Destinations">
        {outgoing.length > 0 ? (
          <BindingTable
            bindings={outgoing}
            show="destination"
            label="Bindings from this exchange"
            onChange={refresh}
          />
        ) : (
          <p class="muted">No bindings.</p>
        )}
      </Card>
      {incoming.length > 0 && (
        <Card title="Sources">
          <BindingTable
            bindings={incoming}
            show="source"
            label="Bindings to this exchange"
            onChange={refresh}
          />
        </Card>
      )}
      <Card title="Add a binding">
        <BindForm
          vhost={exchange.vhost}
          source={exchange.name}
          names={(queues.data?.items ?? []).map((queue) => queue.name)}
          onDone={refresh}
        />
      </Card>
    </>
  );
}

export function ExchangePage({ vhost, name }: { vhost: string; name: string }) {
  const { query } = useRoute();
  const live = useLive<Exchange>(
    `${apiPath('exchanges', vhost, exchangeSegment(name))}?${sampleQuery(rangeOf('10m'))}`,
  );
  // A virtual host can have many bindings: they are read again only when those of this exchange change.
  const bindings = useOnce<Binding[]>(apiPath('bindings', vhost));
  const own = useLive<Binding[]>(
    name === '' ? null : apiPath('exchanges', vhost, name, 'bindings', 'source'),
  );
  const ownText = JSON.stringify(own.data);
  useEffect(() => void bindings.refresh(), [ownText]);
  const parent = { label: 'Exchanges', to: '#/exchanges' };
  const exchange = live.data;
  const title = exchangeName(name);
  if (exchange === undefined) {
    return (
      <>
        <PageHead title={title} parent={parent} />
        {live.error ? <ErrorNote error={live.error} /> : <Loading />}
      </>
    );
  }
  const all = bindings.data ?? [];
  const tabs = exchange.messages_delayed === undefined ? TABS : WITH_SCHEDULE;
  const tab = tabs.find((item) => item.id === query.tab)?.id ?? 'routing';
  const isBuiltIn = name === '' || name.startsWith('amq.');
  const stats = exchange.message_stats;
  return (
    <>
      <PageHead
        title={title}
        parent={parent}
        sub={
          <>
            {exchange.type} exchange in {vhost} <ExchangeBadges exchange={exchange} />
          </>
        }
      >
        {!isBuiltIn && (
          <button
            type="button"
            class="button button-danger"
            data-testid="delete"
            onClick={() =>
              void deleteExchange(exchange, all.filter((binding) => binding.source === name).length)
            }
          >
            Delete
          </button>
        )}
      </PageHead>
      {live.error && <ErrorNote error={live.error} />}
      <Tabs
        path={['exchanges', vhost, name]}
        tabs={tabs}
        current={tab}
        label="Views of this exchange"
      />
      {tab === 'routing' && (
        <>
          <Stats>
            <Stat
              label="In"
              value={rate(stats?.publish_in_details?.rate ?? 0)}
              note={`${count(stats?.publish_in ?? 0)} in total`}
            />
            <Stat
              label="Out"
              value={rate(stats?.publish_out_details?.rate ?? 0)}
              note={`${count(stats?.publish_out ?? 0)} in total`}
            />
            <Stat
              label="Bindings"
              value={count(all.filter((binding) => binding.source === name).length)}
            />
            {exchange.messages_delayed !== undefined && (
              <Stat label="Scheduled" value={count(exchange.messages_delayed)} testid="delayed" />
            )}
          </Stats>
          <RoutingTab exchange={exchange} bindings={all} />
        </>
      )}
      {tab === 'bindings' && (
        <BindingsTab exchange={exchange} all={all} refresh={() => void bindings.refresh()} />
      )}
      {tab === 'publish' && (
        <Card title="Publish a message">
          <PublishForm vhost={vhost} exchange={name} />
        </Card>
      )}
      {tab === 'scheduled' && <ScheduledMessages exchange={exchange} />}
    </>
  );
}
