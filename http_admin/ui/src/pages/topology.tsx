import { apiPath } from '../api/client';
import { useOnce } from '../api/live';
import type { Binding, Exchange } from '../api/types';
import { Card, Empty } from '../components/card';
import { PageHead } from '../components/page-head';
import { ErrorNote, Loading } from '../components/status-notes';
import { TopologyMap } from '../components/topology-map';
import { defaultVhost, useScope } from '../lib/session';

export function TopologyPage() {
  const scope = useScope();
  const vhost = defaultVhost(scope);
  const bindings = useOnce<Binding[]>(apiPath('bindings', vhost));
  const exchanges = useOnce<Pick<Exchange, 'name'>[]>(
    `${apiPath('exchanges', vhost)}?columns=name,type,vhost`,
  );
  const explicit = (bindings.data ?? []).filter((binding) => binding.source !== '');
  const ready = bindings.data !== undefined && exchanges.data !== undefined;
  return (
    <>
      <PageHead
        title="Topology"
        parent={{ label: 'Exchanges', to: '#/exchanges' }}
        sub={`All bindings in ${vhost}. Enter a routing key to test where a message would go.`}
      >
        <button type="button" class="button" onClick={() => void bindings.refresh()}>
          Refresh
        </button>
      </PageHead>
      {bindings.error && <ErrorNote error={bindings.error} />}
      {!ready && !bindings.error && <Loading />}
      {ready && (
        <Card>
          {explicit.length === 0 ? (
            <Empty title="No bindings yet">
              <p>
                Open <a href="#/exchanges">an exchange</a> and bind a queue to it. The virtual host
                can be chosen at the top.
              </p>
            </Empty>
          ) : (
            <TopologyMap
              key={vhost}
              vhost={vhost}
              bindings={explicit}
              exchanges={(exchanges.data ?? []).map((exchange) => exchange.name)}
            />
          )}
        </Card>
      )}
    </>
  );
}
