import { useState } from 'preact/hooks';
import { apiPath, get, put, remove } from '../../api/client';
import { useLive } from '../../api/live';
import type { Queue, Vhost } from '../../api/types';
import { Badge, Card, PageHead } from '../../components/basics';
import { DataTable, FilterBox, type Column } from '../../components/DataTable';
import { attempt, confirmLoss, ErrorNote, Loading, toast } from '../../components/feedback';
import { Form, SelectField, TextField } from '../../components/forms';
import { count, plural, rate } from '../../lib/format';
import { href } from '../../lib/route';
import { isAdmin, useScope } from '../../lib/session';
import { matching, sorted, type Sorting } from '../../lib/sort';

export const QUEUE_TYPES = [{ id: 'classic', label: 'Classic' }, { id: 'quorum', label: 'Quorum' }, { id: 'stream', label: 'Log' }] as const;

/** Asks with the number of queues and messages that would go; true when deleted. */
export async function deleteVhost(vhost: Vhost): Promise<boolean> {
  const queues = await get<Queue[]>(`${apiPath('queues', vhost.name)}?columns=name,messages`).catch(() => []);
  const messages = queues.reduce((sum, queue) => sum + (queue.messages ?? 0), 0);
  const yes = await confirmLoss({
    title: `Delete virtual host ${vhost.name}?`,
    loss: `${plural(queues.length, 'queue')} with ${plural(messages, 'message')}, all exchanges, bindings, permissions and policies in it will be lost, and its connections closed. This cannot be undone.`,
    action: 'Delete virtual host',
  });
  return yes && attempt(() => remove(apiPath('vhosts', vhost.name)), `Virtual host ${vhost.name} is deleted.`);
}

function AddVhost({ known, onDone }: { known: readonly string[]; onDone: () => void }) {
  const [name, setName] = useState('');
  const [description, setDescription] = useState('');
  const [type, setType] = useState('classic');
  return (
    <Form label="Add a virtual host" action="Add virtual host" testid="add-vhost" onSubmit={async () => {
      if (known.includes(name)) throw new Error(`There is a virtual host ${name} already.`);
      await put(apiPath('vhosts', name), { description, default_queue_type: type });
      toast(`Virtual host ${name} is there.`);
      setName('');
      onDone();
    }}>
      <TextField label="Name" value={name} onInput={setName} required />
      <TextField label="Description" value={description} onInput={setDescription} />
      <SelectField label="Type of new queues" value={type} onInput={setType} options={QUEUE_TYPES}
        help="Of durable queues whose declaration names no type." />
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
    { id: 'name', title: 'Name', sort: 'name', render: (one) => <><a href={href(['vhosts', one.name])}>{one.name}</a>{one.description && <span class="under">{one.description}</span>}</> },
    { id: 'tracing', title: 'Tracing', minor: true, render: (one) => (one.tracing ? <Badge tone="warn">on</Badge> : <span class="muted">off</span>) },
    { id: 'ready', title: 'Ready', sort: 'messages_ready', numeric: true, render: (one) => count(one.messages_ready ?? 0) },
    { id: 'unacked', title: 'Unacked', sort: 'messages_unacknowledged', numeric: true, minor: true, render: (one) => count(one.messages_unacknowledged ?? 0) },
    { id: 'in', title: 'In', sort: 'message_stats.publish_details.rate', numeric: true, minor: true, render: (one) => rate(one.message_stats?.publish_details?.rate ?? 0) },
    { id: 'out', title: 'Out', sort: 'message_stats.deliver_get_details.rate', numeric: true, minor: true, render: (one) => rate(one.message_stats?.deliver_get_details?.rate ?? 0) },
  ];
  const rows = sorted(matching(live.data ?? [], ['name', 'description'], filter), sorting);
  return (
    <>
      <PageHead title="Virtual hosts" sub="Separate worlds in one broker: each has its own queues, exchanges and permissions." />
      {live.error && <ErrorNote error={live.error} />}
      {live.data === undefined && !live.error && <Loading />}
      {live.data && (
        <Card tight>
          <div class="toolbar"><FilterBox label="Filter by name" value={filter} onInput={setFilter} /></div>
          <DataTable label="Virtual hosts" testid="vhosts" columns={columns} rows={rows} rowKey={(one) => one.name} sorting={sorting} onSort={setSorting} />
        </Card>
      )}
      {admin && <Card title="Add a virtual host"><AddVhost known={(live.data ?? []).map((one) => one.name)} onDone={() => void live.refresh()} /></Card>}
    </>
  );
}
