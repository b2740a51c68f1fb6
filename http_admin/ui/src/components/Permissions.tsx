/** Permissions of a user or in a vhost: three patterns, and what each allows in words. */

import { useState } from 'preact/hooks';
import { apiPath, put, remove } from '../api/client';
import type { Permission } from '../api/types';
import { href } from '../lib/route';
import { DataTable, type Column } from './DataTable';
import { attempt, confirmLoss, toast } from './feedback';
import { Form, SelectField, TextField } from './forms';

async function clear(permission: Permission, after: () => void): Promise<void> {
  const yes = await confirmLoss({
    title: 'Take these permissions away?',
    loss: `${permission.user} may no longer enter ${permission.vhost}. Queues and messages stay.`,
    action: 'Take away',
  });
  if (yes && (await attempt(() => remove(apiPath('permissions', permission.vhost, permission.user)), 'Permissions taken away.'))) after();
}

export function PermissionTable({ permissions, show, onChange }: { permissions: readonly Permission[]; show: 'user' | 'vhost'; onChange: () => void }) {
  const columns: Column<Permission>[] = [
    { id: 'who', title: show === 'user' ? 'User' : 'Virtual host', render: (one) => <a href={show === 'user' ? href(['users', one.user]) : href(['vhosts', one.vhost])}>{show === 'user' ? one.user : one.vhost}</a> },
    ...(['configure', 'write', 'read'] as const).map((kind) => ({
      id: kind,
      title: kind.charAt(0).toUpperCase() + kind.slice(1),
      render: (one: Permission) => (one[kind] === '' ? <span class="muted">nothing</span> : <code>{one[kind]}</code>),
    })),
    { id: 'clear', title: '', render: (one) => <button class="button button-small" aria-label={`Take away permissions of ${one.user} in ${one.vhost}`} onClick={() => void clear(one, onChange)}>Take away</button> },
  ];
  return <DataTable stacked label="Permissions" testid="permissions" columns={columns} rows={permissions} rowKey={(one) => `${one.user}\n${one.vhost}`} />;
}

interface SetProps {
  user?: string;
  vhost?: string;
  names: readonly string[];
  onDone: () => void;
}

/** Either the user or the vhost is given; the other one is chosen. */
export function PermissionForm({ user, vhost, names, onDone }: SetProps) {
  const [other, setOther] = useState('');
  const [configure, setConfigure] = useState('.*');
  const [write, setWrite] = useState('.*');
  const [read, setRead] = useState('.*');
  const chosen = other === '' ? (names[0] ?? '') : other;
  const submit = async (): Promise<void> => {
    await put(apiPath('permissions', vhost ?? chosen, user ?? chosen), { configure, write, read });
    toast('Permissions set.');
    onDone();
  };
  return (
    <Form label="Set permissions" action="Set permissions" testid="set-permissions" onSubmit={submit}>
      <SelectField label={user === undefined ? 'User' : 'Virtual host'} value={chosen} onInput={setOther} options={names} />
      <TextField label="Configure" value={configure} onInput={setConfigure} help="Declare and delete queues and exchanges whose name matches this pattern." />
      <TextField label="Write" value={write} onInput={setWrite} help="Publish to exchanges, bind queues." />
      <TextField label="Read" value={read} onInput={setRead} help="Consume, get and purge; bind from exchanges. Empty means nothing." />
    </Form>
  );
}
