import { useState } from 'preact/hooks';
import { apiPath, get, put, remove } from '../../api/client';
import { useLive } from '../../api/live';
import type { Queue, Vhost } from '../../api/types';
import { Badge } from '../../components/badge';
import { Card } from '../../components/card';
import { type Column, DataTable, FilterBox } from '../../components/data-table';
import { confirmLoss } from '../../components/dialog';
import { Form, SelectField, TextField } from '../../components/forms';
import { PageHead } from '../../components/page-head';
import { ErrorNote, Loading } from '../../components/status-notes';
import { attempt, toast } from '../../components/toasts';
import { count, plural, rate } from '../../lib/format';
import { QUEUE_KINDS } from '../../lib/queue-arguments';
import { href } from '../../lib/route';
import { isAdmin, useScope } from '../../lib/session';
import { matching, type Sorting, sorted } from '../../lib/sort';

/** Deletes a virtual host after a confirmation; true if it was deleted. */
export async function deleteVhost(vhost: Vhost): Promise<boolean> {
  const queues = await get<Pick<Queue, 'messages'>[]>(
    `${apiPath('queues', vhost.name)}?columns=name,messages`,
  ).catch(() => []);
  const messages = queues.reduce((sum, queue) => sum + queue.messages, 0);
  const confirmed = await confirmLoss({
    title: `Delete virtual host ${vhost.name}?`,
    loss: `${plural(queues.length, 'queue')} with ${plural(messages, 'message')}, and all exchanges, bindings, permissions and policies in it will be lost, and its connections closed. This cannot be undone.`,
    action: 'Delete virtual host',
  });
  return (
    confirmed &&
    attempt(() => remove(apiPath('vhosts', vhost.name)), `Virtual host ${vhost.name} deleted.`)
  );
}

function AddVhost({ known, onDone }: { known: readonly string[]; onDone: () => void }) {
  const [name, setName] = useState('');
  const [description, setDescription] = useState('');
  const [type, setType] = useState('classic');
  return (
    <Form
      label="Add a virtual host"
      action="Add virtual host"
      testid="add-vhost"
      onSubmit={async () => {
        if (known.includes(name)) throw new Error(`Virtual host ${name} already exists.`);
        await put(apiPath('vhosts', name), { description, default_queue_type: type });
        toast(`Virtual host ${name} created.`);
        setName('');
        onDone();
      }}
    >
      <TextField label="Name" value={name} onInput={setName} required />
      <TextField label="Description" value={description} onInput={setDescription} />
      <SelectField
        label="Default queue type"
        value={type}
        onInput={setType}
        options={QUEUE_KINDS}
        help="For durable queues that are declared without a type."
      />
    </Form>
  );
}

export function VhostsPage() {
  const { session } = useScope();
  const live = useLive<Vhost[]>('/api/vhosts');
  const [filter, setFilter] = useState('');
  const [sorting, setSorting] = useState<Sorting>({ by: 'name', descending: false });
  const admin = isAdmin(session);
  const columns: Column<Vhost>[] = [
    {
      id: 'name',
      title: 'Name',
      sort: 'name',
      render: (vhost) => (
        <>
          <a href={href(['vhosts', vhost.name])}>{vhost.name}</a>
          {vhost.description && <span class="under">{vhost.description}</span>}
        </>
      ),
    },
    {
      id: 'tracing',
      title: 'Tracing',
      minor: true,
      render: (vhost) =>
        vhost.tracing ? <Badge tone="warn">on</Badge> : <span class="muted">off</span>,
    },
    {
      id: 'ready',
      title: 'Ready',
      sort: 'messages_ready',
      numeric: true,
      render: (vhost) => count(vhost.messages_ready),
    },
    {
      id: 'unacked',
      title: 'Unacked',
      sort: 'messages_unacknowledged',
      numeric: true,
      minor: true,
      render: (vhost) => count(vhost.messages_unacknowledged),
    },
    {
      id: 'in',
      title: 'In',
      sort: 'message_stats.publish_details.rate',
      numeric: true,
      minor: true,
      render: (vhost) => rate(vhost.message_stats?.publish_details?.rate ?? 0),
    },
    {
      id: 'out',
      title: 'Out',
      sort: 'message_stats.deliver_get_details.rate',
      numeric: true,
      minor: true,
      render: (vhost) => rate(vhost.message_stats?.deliver_get_details?.rate ?? 0),
    },
  ];
  const rows = sorted(matching(live.data ?? [], ['name', 'description'], filter), sorting);
  return (
    <>
      <PageHead
        title="Virtual hosts"
        sub="Each virtual host has its own queues, exchanges, permissions and policies."
      />
      {live.error && <ErrorNote error={live.error} />}
      {live.data === undefined && !live.error && <Loading />}
      {live.data && (
        <Card tight>
          <div class="toolbar">
            <FilterBox label="Filter by name" value={filter} onInput={setFilter} />
          </div>
          <DataTable
            label="Virtual hosts"
            testid="vhosts"
            columns={columns}
            rows={rows}
            rowKey={(vhost) => vhost.name}
            sorting={sorting}
            onSort={setSorting}
          />
        </Card>
      )}
      {admin && (
        <Card title="Add a virtual host">
          <AddVhost
            known={(live.data ?? []).map((vhost) => vhost.name)}
            onDone={() => void live.refresh()}
          />
        </Card>
      )}
    </>
  );
}
