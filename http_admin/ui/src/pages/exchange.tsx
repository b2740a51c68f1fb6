import { useEffect, useMemo } from 'preact/hooks';
import { apiPath, exchangeSegment, remove } from '../api/client';
import { useLive, useOnce } from '../api/live';
import type { Binding, Exchange, Page, Queue } from '../api/types';
import { Card, Facts, PageHead, Stat, Stats, TableFacts, Tabs } from '../components/basics';
import { BindForm, BindingTable } from '../components/Bindings';
import { Chart } from '../components/Chart';
import { attempt, confirmLoss, ErrorNote, Loading } from '../components/feedback';
import { Publish } from '../components/Publish';
import { RoutingMap } from '../components/RoutingMap';
import { Schedule } from '../components/Scheduled';
import { count, exchangeName, plural, rate } from '../lib/format';
import { reachable } from '../lib/graph';
import { go, useRoute } from '../lib/hooks';
import { rangeOf, sampleQuery } from '../lib/series';
import { ExchangeBadges } from './exchanges';

const TABS = [
  { id: 'routing', label: 'Routing' },
  { id: 'bindings', label: 'Bindings' },
  { id: 'publish', label: 'Publish' },
] as const;
const WITH_SCHEDULE = [...TABS, { id: 'scheduled', label: 'Scheduled' }] as const;

async function deleteExchange(exchange: Exchange, bindings: number): Promise<void> {
  const yes = await confirmLoss({
    title: `Delete ${exchange.name}?`,
    loss: `The exchange and ${plural(bindings, 'binding')} from it will be lost. Publishing to it will fail. Messages already in queues stay.`,
    action: 'Delete exchange',
  });
  if (yes && (await attempt(() => remove(apiPath('exchanges', exchange.vhost, exchange.name)), `${exchange.name} is deleted.`))) go('#/exchanges');
}

function RoutingTab({ exchange, bindings }: { exchange: Exchange; bindings: readonly Binding[] }) {
  const reached = useMemo(() => reachable(bindings, exchange.name), [bindings, exchange.name]);
  const stats = exchange.message_stats;
  const lines = [
    { label: 'In', details: stats?.publish_in_details, color: 3 },
    { label: 'Out', details: stats?.publish_out_details, color: 1 },
  ];
  return (
    <>
      <Card title="Where messages go" testid="routing">
        {exchange.name === '' ? (
          <p class="muted card-lead">The default exchange sends each message to the queue that has the routing key as its name.</p>
        ) : reached.length === 0 && <p class="muted card-lead">Nothing is bound yet, so every message published here is dropped. Bind a queue under Bindings.</p>}
        <RoutingMap vhost={exchange.vhost} bindings={reached} start={exchange.name} exchanges={[exchange.name]} />
      </Card>
      <div class="columns">
        <Card title="Traffic"><Chart title="Messages per second" kind="rate" lines={lines} /></Card>
        <Card title="Declared with">
          <Facts items={[['Type', exchange.type], ['Durable', exchange.durable ? 'yes' : 'no'], ['Auto-delete', exchange.auto_delete ? 'yes' : 'no'], ['Internal', exchange.internal ? 'yes' : 'no'], ['Policy', exchange.policy]]} />
          <div class="gap-top"><TableFacts table={exchange.arguments} none="No arguments." /></div>
        </Card>
      </div>
    </>
  );
}

function BindingsTab({ exchange, all, refresh }: { exchange: Exchange; all: readonly Binding[]; refresh: () => void }) {
  const queues = useOnce<Page<Queue>>(`${apiPath('queues', exchange.vhost)}?page=1&page_size=500&columns=name`);
  if (exchange.name === '') return <Card><p>Every queue is bound to the default exchange by its own name; this cannot be changed.</p></Card>;
  const out = all.filter((one) => one.source === exchange.name);
  const into = all.filter((one) => one.destination === exchange.name && one.destination_type === 'exchange');
  return (
    <>
      <Card title="Sends to">
        {out.length > 0 ? <BindingTable bindings={out} show="destination" label="Bindings from this exchange" onChange={refresh} /> : <p class="muted">Nothing yet.</p>}
      </Card>
      {into.length > 0 && <Card title="Gets from"><BindingTable bindings={into} show="source" label="Bindings to this exchange" onChange={refresh} /></Card>}
      <Card title="Add a binding"><BindForm vhost={exchange.vhost} source={exchange.name} names={(queues.data?.items ?? []).map((one) => one.name)} onDone={refresh} /></Card>
    </>
  );
}

export function ExchangePage({ vhost, name }: { vhost: string; name: string }) {
  const { query } = useRoute();
  const live = useLive<Exchange>(`${apiPath('exchanges', vhost, exchangeSegment(name))}?${sampleQuery(rangeOf('10m'))}`);
  // All bindings of a vhost can be many, so they are read again only when this exchange's own change.
  const bindings = useOnce<Binding[]>(apiPath('bindings', vhost));
  const own = useLive<Binding[]>(name === '' ? null : apiPath('exchanges', vhost, name, 'bindings', 'source'));
  const ownText = JSON.stringify(own.data);
  useEffect(() => void bindings.refresh(), [ownText]);
  const parent = { label: 'Exchanges', to: '#/exchanges' };
  const exchange = live.data;
  const title = exchangeName(name);
  if (exchange === undefined) {
    return <><PageHead title={title} parent={parent} />{live.error ? <ErrorNote error={live.error} /> : <Loading />}</>;
  }
  const all = bindings.data ?? [];
  const tabs = exchange.messages_delayed === undefined ? TABS : WITH_SCHEDULE;
  const tab = tabs.find((one) => one.id === query['tab'])?.id ?? 'routing';
  const builtIn = name === '' || name.startsWith('amq.');
  const stats = exchange.message_stats;
  return (
    <>
      <PageHead title={title} parent={parent} sub={<>{exchange.type} exchange in {vhost} <ExchangeBadges exchange={exchange} /></>}>
        {!builtIn && <button class="button button-danger" data-testid="delete" onClick={() => void deleteExchange(exchange, all.filter((one) => one.source === name).length)}>Delete</button>}
      </PageHead>
      {live.error && <ErrorNote error={live.error} />}
      <Tabs path={['exchanges', vhost, name]} tabs={tabs} current={tab} label="Parts of this exchange" />
      {tab === 'routing' && (
        <>
          <Stats>
            <Stat label="In" value={rate(stats?.publish_in_details?.rate ?? 0)} note={`${count(stats?.publish_in ?? 0)} in all`} />
            <Stat label="Out" value={rate(stats?.publish_out_details?.rate ?? 0)} note={`${count(stats?.publish_out ?? 0)} in all`} />
            <Stat label="Bindings" value={count(all.filter((one) => one.source === name).length)} />
            {exchange.messages_delayed !== undefined && <Stat label="Scheduled" value={count(exchange.messages_delayed)} testid="delayed" />}
          </Stats>
          <RoutingTab exchange={exchange} bindings={all} />
        </>
      )}
      {tab === 'bindings' && <BindingsTab exchange={exchange} all={all} refresh={() => void bindings.refresh()} />}
      {tab === 'publish' && <Card title="Publish"><Publish vhost={vhost} exchange={name} /></Card>}
      {tab === 'scheduled' && <Schedule exchange={exchange} />}
    </>
  );
}
