import { apiPath } from '../api/client';
import { useOnce } from '../api/live';
import type { Binding, Exchange } from '../api/types';
import { Card, Empty, PageHead } from '../components/basics';
import { ErrorNote, Loading } from '../components/feedback';
import { RoutingMap } from '../components/RoutingMap';
import { homeVhost, useScope } from '../lib/session';

export function RoutingPage() {
  const scope = useScope();
  const vhost = homeVhost(scope);
  const bindings = useOnce<Binding[]>(apiPath('bindings', vhost));
  const exchanges = useOnce<Exchange[]>(`${apiPath('exchanges', vhost)}?columns=name,type,vhost`);
  const named = (bindings.data ?? []).filter((one) => one.source !== '');
  const ready = bindings.data !== undefined && exchanges.data !== undefined;
  return (
    <>
      <PageHead title="Routing picture" parent={{ label: 'Exchanges', to: '#/exchanges' }} sub={`Every binding in ${vhost}. Give a key to see where a message would go.`}>
        <button class="button" onClick={() => void bindings.refresh()}>Refresh</button>
      </PageHead>
      {bindings.error && <ErrorNote error={bindings.error} />}
      {!ready && !bindings.error && <Loading />}
      {ready && (
        <Card>
          {named.length === 0 ? (
            <Empty title="No bindings yet"><p>Open <a href="#/exchanges">an exchange</a> and bind a queue to it; the picture draws itself. Choose the virtual host at the top.</p></Empty>
          ) : <RoutingMap key={vhost} vhost={vhost} bindings={named} exchanges={(exchanges.data ?? []).map((one) => one.name)} />}
        </Card>
      )}
    </>
  );
}
