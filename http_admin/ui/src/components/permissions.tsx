/** Permissions of a user, or in a virtual host: a table and a form. */

import { useState } from 'preact/hooks';
import { apiPath, put, remove } from '../api/client';
import type { Permission } from '../api/types';
import { href } from '../lib/route';
import { type Column, DataTable } from './data-table';
import { confirmLoss } from './dialog';
import { Form, SelectField, TextField } from './forms';
import { attempt, toast } from './toasts';

async function revoke(permission: Permission, onDone: () => void): Promise<void> {
  const confirmed = await confirmLoss({
    title: 'Revoke these permissions?',
    loss: `${permission.user} loses access to virtual host ${permission.vhost}. Queues and messages stay.`,
    action: 'Revoke',
  });
  if (
    confirmed &&
    (await attempt(
      () => remove(apiPath('permissions', permission.vhost, permission.user)),
      'Permissions revoked.',
    ))
  )
    onDone();
}

export function PermissionTable({
  permissions,
  show,
  onChange,
}: {
  permissions: readonly Permission[];
  show: 'user' | 'vhost';
  onChange: () => void;
}) {
  const columns: Column<Permission>[] = [
    {
      id: 'name',
      title: show === 'user' ? 'User' : 'Virtual host',
      render: (permission) => (
        <a
          href={
            show === 'user' ? href(['users', permission.user]) : href(['vhosts', permission.vhost])
          }
        >
          {show === 'user' ? permission.user : permission.vhost}
        </a>
      ),
    },
    ...(['configure', 'write', 'read'] as const).map((kind) => ({
      id: kind,
      title: kind.charAt(0).toUpperCase() + kind.slice(1),
      render: (permission: Permission) =>
        permission[kind] === '' ? (
          <span class="muted">nothing</span>
        ) : (
          <code>{permission[kind]}</code>
        ),
    })),
    {
      id: 'revoke',
      title: '',
      render: (permission) => (
        <button
          type="button"
          class="button button-small"
          aria-label={`Revoke permissions of ${permission.user} in ${permission.vhost}`}
          onClick={() => void revoke(permission, onChange)}
        >
          Revoke
        </button>
      ),
    },
  ];
  return (
    <DataTable
      stacked
      label="Permissions"
      testid="permissions"
      columns={columns}
      rows={permissions}
      rowKey={(permission) => `${permission.user}\n${permission.vhost}`}
    />
  );
}

interface PermissionFormProps {
  user?: string;
  vhost?: string;
  names: readonly string[];
  onDone: () => void;
}

/** Either the user or the virtual host is given; the form asks for the other. */
export function PermissionForm({ user, vhost, names, onDone }: PermissionFormProps) {
  const [other, setOther] = useState('');
  const [configure, setConfigure] = useState('.*');
  const [write, setWrite] = useState('.*');
  const [read, setRead] = useState('.*');
  const chosen = other === '' ? (names[0] ?? '') : other;
  const submit = async (): Promise<void> => {
    await put(apiPath('permissions', vhost ?? chosen, user ?? chosen), { configure, write, read });
    toast('Permissions saved.');
    onDone();
  };
  return (
    <Form
      label="Set permissions"
      action="Set permissions"
      testid="set-permissions"
      onSubmit={submit}
    >
      <SelectField
        label={user === undefined ? 'User' : 'Virtual host'}
        value={chosen}
        onInput={setOther}
        options={names}
      />
      <TextField
        label="Configure"
        value={configure}
        onInput={setConfigure}
        help="Declare and delete queues and exchanges whose names match this pattern."
      />
      <TextField
        label="Write"
        value={write}
        onInput={setWrite}
        help="Publish to exchanges; bind queues."
      />
      <TextField
        label="Read"
        value={read}
        onInput={setRead}
        help="Consume from, get from and purge queues; bind to exchanges. An empty pattern matches nothing."
      />
    </Form>
  );
}
