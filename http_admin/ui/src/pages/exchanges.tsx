import { apiPath } from '../api/client';
import type { Exchange } from '../api/types';
import { Badge } from '../components/badge';
import { Card } from '../components/card';
import { type Column, DataTable, FilterBox, Pager } from '../components/data-table';
import { Icon } from '../components/icon';
import { ExchangeLink } from '../components/links';
import { PageHead } from '../components/page-head';
import { ErrorNote, Loading } from '../components/status-notes';
import { rate } from '../lib/format';
import { useListState, usePage } from '../lib/list-state';
import { href } from '../lib/route';
import { useScope } from '../lib/session';

export function ExchangeBadges({ exchange }: { exchange: Exchange }) {
  return (
    <span class="badges">
      {!exchange.durable && <Badge title="Does not survive a restart">transient</Badge>}
      {exchange.auto_delete && (
        <Badge title="Deleted when its last binding is removed">auto-delete</Badge>
      )}
      {exchange.internal && <Badge title="Clients cannot publish to it">internal</Badge>}
      {exchange.arguments['alternate-exchange'] !== undefined && (
        <Badge title="Unroutable messages go to another exchange">alternate</Badge>
      )}
      {exchange.arguments['x-super-stream'] === true && <Badge tone="info">log</Badge>}
      {exchange.policy && <Badge title="Policy">{exchange.policy}</Badge>}
    </span>
  );
}

const COLUMNS: readonly Column<Exchange>[] = [
  {
    id: 'name',
    title: 'Name',
    sort: 'name',
    render: (exchange) => <ExchangeLink vhost={exchange.vhost} name={exchange.name} />,
  },
  { id: 'type', title: 'Type', sort: 'type', render: (exchange) => exchange.type },
  {
    id: 'features',
    title: 'Features',
    minor: true,
    render: (exchange) => <ExchangeBadges exchange={exchange} />,
  },
  {
    id: 'in',
    title: 'In',
    sort: 'message_stats.publish_in_details.rate',
    numeric: true,
    render: (exchange) => rate(exchange.message_stats?.publish_in_details?.rate ?? 0),
  },
  {
    id: 'out',
    title: 'Out',
    sort: 'message_stats.publish_out_details.rate',
    numeric: true,
    render: (exchange) => rate(exchange.message_stats?.publish_out_details?.rate ?? 0),
  },
];

export function ExchangesPage() {
  const { vhost } = useScope();
  const list = useListState(['exchanges'], { by: 'name', descending: false });
  const base = vhost === '' ? '/api/exchanges' : apiPath('exchanges', vhost);
  const { data, error, loading } = usePage<Exchange>(base, list);
  return (
    <>
      <PageHead
        title="Exchanges"
        sub="Clients publish to exchanges; bindings route the messages to queues."
      >
        <a class="button" href={href(['routing'])}>
          <Icon name="exchanges" /> Topology
        </a>
        <a class="button button-main" href={href(['new-exchange'])}>
          <Icon name="plus" /> Declare exchange
        </a>
      </PageHead>
      {error && <ErrorNote error={error} />}
      {data === undefined && !error && <Loading />}
      {data !== undefined && (
        <Card tight>
          <div class="toolbar">
            <FilterBox label="Filter by name" value={list.filter} onInput={list.setFilter} />
          </div>
          <DataTable
            label="Exchanges"
            testid="exchanges"
            columns={COLUMNS}
            rows={data.items}
            rowKey={(exchange) => `${exchange.vhost}\n${exchange.name}`}
            sorting={list.sorting}
            onSort={list.setSorting}
            busy={loading}
          />
          <Pager data={data} onPage={list.setPage} noun="exchanges" />
        </Card>
      )}
    </>
  );
}
