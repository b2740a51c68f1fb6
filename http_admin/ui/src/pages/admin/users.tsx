import { useState } from 'preact/hooks';
import { apiPath, get, put, remove } from '../../api/client';
import { useOnce } from '../../api/live';
import type { Permission, User } from '../../api/types';
import { Badge } from '../../components/badge';
import { Card } from '../../components/card';
import { type Column, DataTable, FilterBox } from '../../components/data-table';
import { confirmLoss } from '../../components/dialog';
import { CheckField, Form, TextField } from '../../components/forms';
import { PageHead } from '../../components/page-head';
import { ErrorNote, Loading } from '../../components/status-notes';
import { attempt, toast } from '../../components/toasts';
import { plural } from '../../lib/format';
import { href } from '../../lib/route';
import { useScope } from '../../lib/session';
import { matching, type Sorting, sorted } from '../../lib/sort';

export const TAGS: readonly { id: string; help: string }[] = [
  { id: 'administrator', help: 'Can do everything, in every virtual host.' },
  { id: 'monitoring', help: 'Can see all connections, channels and node statistics.' },
  { id: 'policymaker', help: 'Can set policies in the virtual hosts it has access to.' },
  { id: 'management', help: 'Can sign in here and see the virtual hosts it has access to.' },
];

export function TagPicker({
  tags,
  onChange,
}: {
  tags: readonly string[];
  onChange: (tags: string[]) => void;
}) {
  return (
    <fieldset class="field field-wide">
      <legend>Roles in this dashboard and the HTTP API</legend>
      <div class="kinds">
        {TAGS.map((tag) => (
          <CheckField
            key={tag.id}
            label={tag.id}
            help={tag.help}
            checked={tags.includes(tag.id)}
            onInput={(on) =>
              onChange(on ? [...tags, tag.id] : tags.filter((other) => other !== tag.id))
            }
          />
        ))}
      </div>
    </fieldset>
  );
}

/** Deletes a user after a confirmation; true if it was deleted. */
export async function deleteUser(name: string, signedInAs: string): Promise<boolean> {
  const permissions = await get<Permission[]>(apiPath('users', name, 'permissions')).catch(
    () => [],
  );
  const isOwn =
    name === signedInAs ? ' You are signed in as this user and will be signed out.' : '';
  const confirmed = await confirmLoss({
    title: `Delete user ${name}?`,
    loss: `The password, the roles and the permissions in ${plural(permissions.length, 'virtual host')} will be lost, and open connections of the user closed. Queues and messages stay.${isOwn}`,
    action: 'Delete user',
  });
  return confirmed && attempt(() => remove(apiPath('users', name)), `User ${name} deleted.`);
}

function AddUser({ known, onDone }: { known: readonly string[]; onDone: () => void }) {
  const [name, setName] = useState('');
  const [password, setPassword] = useState('');
  const [tags, setTags] = useState<string[]>([]);
  const submit = async (): Promise<void> => {
    if (known.includes(name)) throw new Error(`User ${name} already exists. Open it to change it.`);
    await put(apiPath('users', name), { password, tags: tags.join(',') });
    toast(
      `User ${name} created. It has no access to any virtual host yet: open it to set permissions.`,
    );
    setName('');
    setPassword('');
    onDone();
  };
  return (
    <Form label="Add a user" action="Add user" testid="add-user" onSubmit={submit}>
      <TextField label="Name" value={name} onInput={setName} required />
      <TextField
        label="Password"
        type="password"
        autocomplete="new-password"
        value={password}
        onInput={setPassword}
        required
      />
      <TagPicker tags={tags} onChange={setTags} />
    </Form>
  );
}

export function UsersPage() {
  const { session } = useScope();
  const users = useOnce<User[]>('/api/users');
  const permissions = useOnce<Permission[]>('/api/permissions');
  const [filter, setFilter] = useState('');
  const [sorting, setSorting] = useState<Sorting>({ by: 'name', descending: false });
  const removeUser = async (name: string): Promise<void> => {
    if (await deleteUser(name, session.name)) await users.refresh();
  };
  const columns: Column<User>[] = [
    {
      id: 'name',
      title: 'Name',
      sort: 'name',
      render: (user) => <a href={href(['users', user.name])}>{user.name}</a>,
    },
    {
      id: 'tags',
      title: 'Roles',
      sort: 'tags',
      render: (user) =>
        user.tags.length === 0 ? (
          <span class="muted">AMQP only</span>
        ) : (
          <span class="badges">
            {user.tags.map((tag) => (
              <Badge key={tag} tone={tag === 'administrator' ? 'info' : 'plain'}>
                {tag}
              </Badge>
            ))}
          </span>
        ),
    },
    {
      id: 'vhosts',
      title: 'Virtual hosts',
      minor: true,
      render: (user) =>
        (permissions.data ?? [])
          .filter((permission) => permission.user === user.name)
          .map((permission) => permission.vhost)
          .join(', ') || <Badge tone="warn">none</Badge>,
    },
    {
      id: 'delete',
      title: '',
      render: (user) => (
        <button
          type="button"
          class="button button-small button-danger"
          aria-label={`Delete ${user.name}`}
          onClick={() => void removeUser(user.name)}
        >
          Delete
        </button>
      ),
    },
  ];
  return (
    <>
      <PageHead title="Users" sub="Accounts, their roles and their permissions." />
      {users.error && <ErrorNote error={users.error} />}
      {users.data === undefined && !users.error && <Loading />}
      {users.data && (
        <Card tight>
          <div class="toolbar">
            <FilterBox label="Filter by name" value={filter} onInput={setFilter} />
          </div>
          <DataTable
            stacked
            label="Users"
            testid="users"
            columns={columns}
            rows={sorted(matching(users.data, ['name'], filter), sorting)}
            rowKey={(user) => user.name}
            sorting={sorting}
            onSort={setSorting}
          />
        </Card>
      )}
      <Card title="Add a user">
        <AddUser
          known={(users.data ?? []).map((user) => user.name)}
          onDone={() => void users.refresh()}
        />
      </Card>
    </>
  );
}
