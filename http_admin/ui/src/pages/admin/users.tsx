import { useState } from 'preact/hooks';
import { apiPath, get, put, remove, tagsOf } from '../../api/client';
import { useOnce } from '../../api/live';
import type { Permission, User } from '../../api/types';
import { Badge, Card, PageHead } from '../../components/basics';
import { DataTable, FilterBox, type Column } from '../../components/DataTable';
import { attempt, confirmLoss, ErrorNote, Loading, toast } from '../../components/feedback';
import { CheckField, Form, TextField } from '../../components/forms';
import { plural } from '../../lib/format';
import { href } from '../../lib/route';
import { useScope } from '../../lib/session';
import { matching, sorted, type Sorting } from '../../lib/sort';

export const TAGS: readonly { id: string; help: string }[] = [
  { id: 'administrator', help: 'May do everything here, for every virtual host.' },
  { id: 'monitoring', help: 'Sees all connections, channels and node figures.' },
  { id: 'policymaker', help: 'Sets policies in the virtual hosts it may enter.' },
  { id: 'management', help: 'May sign in here and see its own virtual hosts.' },
];

export function TagPicker({ tags, onChange }: { tags: readonly string[]; onChange: (tags: string[]) => void }) {
  return (
    <fieldset class="field field-wide">
      <legend>Role on this dashboard and API</legend>
      <div class="kinds">
        {TAGS.map((tag) => (
          <CheckField key={tag.id} label={tag.id} help={tag.help} checked={tags.includes(tag.id)}
            onInput={(on) => onChange(on ? [...tags, tag.id] : tags.filter((one) => one !== tag.id))} />
        ))}
      </div>
    </fieldset>
  );
}

/** Asks and deletes; says which virtual hosts the user loses. */
export async function deleteUser(name: string, me: string): Promise<boolean> {
  const held = await get<Permission[]>(apiPath('users', name, 'permissions')).catch(() => []);
  const mine = name === me ? ' You are signed in as this user and will be signed out.' : '';
  const yes = await confirmLoss({
    title: `Delete user ${name}?`,
    loss: `Its password, role and permissions in ${plural(held.length, 'virtual host')} will be lost; its open connections are closed. Queues and messages stay.${mine}`,
    action: 'Delete user',
  });
  return yes && attempt(() => remove(apiPath('users', name)), `User ${name} is deleted.`);
}

function AddUser({ known, onDone }: { known: readonly string[]; onDone: () => void }) {
  const [name, setName] = useState('');
  const [password, setPassword] = useState('');
  const [tags, setTags] = useState<string[]>([]);
  const submit = async (): Promise<void> => {
    if (known.includes(name)) throw new Error(`There is a user ${name} already; open it to change it.`);
    await put(apiPath('users', name), { password, tags: tags.join(',') });
    toast(`User ${name} is there. It may not enter any virtual host yet: open it to give permissions.`);
    setName('');
    setPassword('');
    onDone();
  };
  return (
    <Form label="Add a user" action="Add user" testid="add-user" onSubmit={submit}>
      <TextField label="Name" value={name} onInput={setName} required />
      <TextField label="Password" type="password" autocomplete="new-password" value={password} onInput={setPassword} required />
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
  const drop = async (name: string): Promise<void> => {
    if (await deleteUser(name, session.name)) await users.refresh();
  };
  const columns: Column<User>[] = [
    { id: 'name', title: 'Name', sort: 'name', render: (user) => <a href={href(['users', user.name])}>{user.name}</a> },
    { id: 'tags', title: 'Role', sort: 'tags', render: (user) => tagsOf(user).length === 0 ? <span class="muted">AMQP only</span> : <span class="badges">{tagsOf(user).map((tag) => <Badge key={tag} tone={tag === 'administrator' ? 'info' : 'plain'}>{tag}</Badge>)}</span> },
    { id: 'vhosts', title: 'May enter', minor: true, render: (user) => (permissions.data ?? []).filter((one) => one.user === user.name).map((one) => one.vhost).join(', ') || <Badge tone="warn">no virtual host</Badge> },
    { id: 'delete', title: '', render: (user) => <button class="button button-small button-danger" aria-label={`Delete ${user.name}`} onClick={() => void drop(user.name)}>Delete</button> },
  ];
  return (
    <>
      <PageHead title="Users" sub="Who may connect, and what they may do." />
      {users.error && <ErrorNote error={users.error} />}
      {users.data === undefined && !users.error && <Loading />}
      {users.data && (
        <Card tight>
          <div class="toolbar"><FilterBox label="Filter by name" value={filter} onInput={setFilter} /></div>
          <DataTable stacked label="Users" testid="users" columns={columns} rows={sorted(matching(users.data, ['name'], filter), sorting)} rowKey={(user) => user.name} sorting={sorting} onSort={setSorting} />
        </Card>
      )}
      <Card title="Add a user"><AddUser known={(users.data ?? []).map((one) => one.name)} onDone={() => void users.refresh()} /></Card>
    </>
  );
}
