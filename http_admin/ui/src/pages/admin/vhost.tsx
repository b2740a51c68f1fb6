import { apiPath, put, tagsOf } from '../../api/client';
import { useLive, useOnce } from '../../api/live';
import type { Permission, User, Vhost } from '../../api/types';
import { Badge, Card, Facts, PageHead, Stat, Stats } from '../../components/basics';
import { TrafficCharts } from '../../components/charts';
import { attempt, ErrorNote, Loading } from '../../components/feedback';
import { CheckField } from '../../components/forms';
import { PermissionForm, PermissionTable } from '../../components/Permissions';
import { bytes, count, rate } from '../../lib/format';
import { go, useStored } from '../../lib/hooks';
import { rangeOf, sampleQuery, SHORT_RANGES } from '../../lib/series';
import { isAdmin, useScope } from '../../lib/session';
import { deleteVhost, QUEUE_TYPES } from './vhosts';

function About({ vhost }: { vhost: Vhost }) {
  const type = QUEUE_TYPES.find((one) => one.id === vhost.default_queue_type)?.label ?? vhost.default_queue_type;
  const tags = tagsOf(vhost);
  return (
    <Card title="Declared with" testid="about">
      <Facts items={[
        ['Type of new queues', type],
        ['Tags', tags.length === 0 ? 'none' : <span class="badges">{tags.map((tag) => <Badge key={tag}>{tag}</Badge>)}</span>],
      ]} />
    </Card>
  );
}

export function VhostPage({ name }: { name: string }) {
  const { session, setVhost } = useScope();
  const admin = isAdmin(session);
  const [rangeId, setRange] = useStored('leveret.range', '1m');
  const live = useLive<Vhost>(`${apiPath('vhosts', name)}?${sampleQuery(rangeOf(rangeId, SHORT_RANGES))}`);
  const permissions = useOnce<Permission[]>(admin ? apiPath('vhosts', name, 'permissions') : null);
  const users = useOnce<User[]>(admin ? '/api/users' : null);
  const parent = { label: 'Virtual hosts', to: '#/vhosts' };
  const vhost = live.data;
  if (vhost === undefined) {
    return <><PageHead title={name} parent={parent} />{live.error ? <ErrorNote error={live.error} /> : <Loading />}</>;
  }
  const trace = (on: boolean): void =>
    void attempt(() => put(apiPath('vhosts', name), { tracing: on, description: vhost.description }), on ? 'Tracing is on.' : 'Tracing is off.').then(() => live.refresh());
  const show = (): void => {
    setVhost(name);
    go('#/queues');
  };
  return (
    <>
      <PageHead title={name} parent={parent} sub={vhost.description}>
        <button class="button" onClick={show}>Show its queues</button>
        {admin && <button class="button button-danger" data-testid="delete" onClick={() => void deleteVhost(vhost).then((done) => done && go('#/vhosts'))}>Delete</button>}
      </PageHead>
      <Stats>
        <Stat label="Ready" value={count(vhost.messages_ready ?? 0)} />
        <Stat label="Unacknowledged" value={count(vhost.messages_unacknowledged ?? 0)} />
        <Stat label="Published" value={rate(vhost.message_stats?.publish_details?.rate ?? 0)} />
        <Stat label="Delivered" value={rate(vhost.message_stats?.deliver_get_details?.rate ?? 0)} />
        <Stat label="From clients" value={`${bytes(vhost.recv_oct_details?.rate ?? 0)}/s`} />
        <Stat label="To clients" value={`${bytes(vhost.send_oct_details?.rate ?? 0)}/s`} />
      </Stats>
      <TrafficCharts totals={vhost} stats={vhost.message_stats} range={rangeOf(rangeId, SHORT_RANGES)} ranges={SHORT_RANGES} onRange={setRange} />
      <About vhost={vhost} />
      {admin && (
        <>
          <Card title="Permissions">
            <PermissionTable permissions={permissions.data ?? []} show="user" onChange={() => void permissions.refresh()} />
            <div class="gap-top"><PermissionForm vhost={name} names={(users.data ?? []).map((one) => one.name)} onDone={() => void permissions.refresh()} /></div>
          </Card>
          <Card title="Tracing">
            <CheckField label="Copy every message to amq.rabbitmq.trace" checked={vhost.tracing === true} onInput={trace}
              help="For debugging: each publish and delivery is copied, which costs throughput. The history page needs no tracing." />
          </Card>
        </>
      )}
    </>
  );
}
