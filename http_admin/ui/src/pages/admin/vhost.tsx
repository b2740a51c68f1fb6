import { apiPath, put } from '../../api/client';
import { useLive, useOnce } from '../../api/live';
import type { Permission, User, Vhost } from '../../api/types';
import { Badge } from '../../components/badge';
import { Card } from '../../components/card';
import { CheckField } from '../../components/forms';
import { KeyValueList } from '../../components/key-value-list';
import { PageHead } from '../../components/page-head';
import { PermissionForm, PermissionTable } from '../../components/permissions';
import { Stat, Stats } from '../../components/stats';
import { ErrorNote, Loading } from '../../components/status-notes';
import { attempt } from '../../components/toasts';
import { TrafficCharts } from '../../components/traffic-charts';
import { bytes, count, rate } from '../../lib/format';
import { useStored } from '../../lib/hooks';
import { navigate } from '../../lib/navigation';
import { QUEUE_KINDS } from '../../lib/queue-arguments';
import { rangeOf, SHORT_RANGES, sampleQuery } from '../../lib/series';
import { isAdmin, useScope } from '../../lib/session';
import { deleteVhost } from './vhosts';

function Properties({ vhost }: { vhost: Vhost }) {
  const type =
    QUEUE_KINDS.find((kind) => kind.id === vhost.default_queue_type)?.label ??
    vhost.default_queue_type;
  const tags = vhost.tags;
  return (
    <Card title="Properties" testid="properties">
      <KeyValueList
        items={[
          ['Default queue type', type],
          [
            'Tags',
            tags.length === 0 ? (
              'none'
            ) : (
              <span class="badges">
                {tags.map((tag) => (
                  <Badge key={tag}>{tag}</Badge>
                ))}
              </span>
            ),
          ],
        ]}
      />
    </Card>
  );
}

export function VhostPage({ name }: { name: string }) {
  const { session, setVhost } = useScope();
  const admin = isAdmin(session);
  const [rangeId, setRange] = useStored('leveret.range', '1m');
  const live = useLive<Vhost>(
    `${apiPath('vhosts', name)}?${sampleQuery(rangeOf(rangeId, SHORT_RANGES))}`,
  );
  const permissions = useOnce<Permission[]>(admin ? apiPath('vhosts', name, 'permissions') : null);
  const users = useOnce<User[]>(admin ? '/api/users' : null);
  const parent = { label: 'Virtual hosts', to: '#/vhosts' };
  const vhost = live.data;
  if (vhost === undefined) {
    return (
      <>
        <PageHead title={name} parent={parent} />
        {live.error ? <ErrorNote error={live.error} /> : <Loading />}
      </>
    );
  }
  const trace = (on: boolean): void =>
    void attempt(
      () => put(apiPath('vhosts', name), { tracing: on, description: vhost.description }),
      on ? 'Tracing is on.' : 'Tracing is off.',
    ).then(() => live.refresh());
  const show = (): void => {
    setVhost(name);
    navigate('#/queues');
  };
  return (
    <>
      <PageHead title={name} parent={parent} sub={vhost.description}>
        <button type="button" class="button" onClick={show}>
          Show queues
        </button>
        {admin && (
          <button
            type="button"
            class="button button-danger"
            data-testid="delete"
            onClick={() => void deleteVhost(vhost).then((done) => done && navigate('#/vhosts'))}
          >
            Delete
          </button>
        )}
      </PageHead>
      <Stats>
        <Stat label="Ready" value={count(vhost.messages_ready)} />
        <Stat label="Unacknowledged" value={count(vhost.messages_unacknowledged)} />
        <Stat label="Published" value={rate(vhost.message_stats?.publish_details?.rate ?? 0)} />
        <Stat label="Delivered" value={rate(vhost.message_stats?.deliver_get_details?.rate ?? 0)} />
        <Stat label="From clients" value={`${bytes(vhost.recv_oct_details.rate)}/s`} />
        <Stat label="To clients" value={`${bytes(vhost.send_oct_details.rate)}/s`} />
      </Stats>
      <TrafficCharts
        totals={vhost}
        stats={vhost.message_stats}
        range={rangeOf(rangeId, SHORT_RANGES)}
        ranges={SHORT_RANGES}
        onRange={setRange}
      />
      <Properties vhost={vhost} />
      {admin && (
        <>
          <Card title="Permissions">
            <PermissionTable
              permissions={permissions.data ?? []}
              show="user"
              onChange={() => void permissions.refresh()}
            />
            <div class="gap-top">
              <PermissionForm
                vhost={name}
                names={(users.data ?? []).map((user) => user.name)}
                onDone={() => void permissions.refresh()}
              />
            </div>
          </Card>
          <Card title="Tracing">
            <CheckField
              label="Copy every message to the exchange amq.rabbitmq.trace"
              checked={vhost.tracing}
              onInput={trace}
              help="For debugging. Every published and every delivered message is copied, which reduces throughput. The history does not need it."
            />
          </Card>
        </>
      )}
    </>
  );
}
