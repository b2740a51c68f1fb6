import { useEffect, useState } from 'preact/hooks';
import { apiPath, get, put, remove, tagsOf } from '../../api/client';
import { useOnce } from '../../api/live';
import type { Permission, TopicPermission, User } from '../../api/types';
import { Badge, Card, PageHead } from '../../components/basics';
import { DataTable, type Column } from '../../components/DataTable';
import { attempt, confirmLoss, ErrorNote, Loading, toast } from '../../components/feedback';
import { CheckField, Form, SelectField, TextField } from '../../components/forms';
import { PermissionForm, PermissionTable } from '../../components/Permissions';
import { go } from '../../lib/hooks';
import { useScope } from '../../lib/session';
import { deleteUser, TagPicker } from './users';

type Stored = User & { password_hash?: string; hashing_algorithm?: string };

/** The API takes no change without a password: its hash as it is now, not as it was when the page opened. */
async function presentSecret(name: string): Promise<Pick<Stored, 'password_hash' | 'hashing_algorithm'>> {
  const now = await get<Stored>(apiPath('users', name));
  return { password_hash: now.password_hash ?? '', hashing_algorithm: now.hashing_algorithm };
}

function EditUser({ user, onDone }: { user: Stored; onDone: () => void }) {
  const [password, setPassword] = useState('');
  const [noPassword, setNoPassword] = useState(false);
  const [tags, setTags] = useState(tagsOf(user));
  useEffect(() => setTags(tagsOf(user)), [user]);
  const submit = async (): Promise<void> => {
    const secret = noPassword ? { password_hash: '' } : password !== '' ? { password } : await presentSecret(user.name);
    await put(apiPath('users', user.name), { ...secret, tags: tags.join(',') });
    toast(`User ${user.name} is changed.`);
    setPassword('');
    onDone();
  };
  return (
    <Form label="Change this user" action="Save" testid="edit-user" onSubmit={submit}>
      <TextField label="New password" type="password" autocomplete="new-password" value={password} onInput={setPassword} disabled={noPassword} help="Leave empty to keep the present one." />
      <CheckField label="No password" checked={noPassword} onInput={setNoPassword} help="Cannot sign in with a password any more." />
      <TagPicker tags={tags} onChange={setTags} />
    </Form>
  );
}

function TopicPermissions({ name, vhosts }: { name: string; vhosts: readonly string[] }) {
  const list = useOnce<TopicPermission[]>(apiPath('users', name, 'topic-permissions'));
  const [vhost, setVhost] = useState('');
  const [exchange, setExchange] = useState('amq.topic');
  const [write, setWrite] = useState('.*');
  const [read, setRead] = useState('.*');
  const where = vhost === '' ? (vhosts[0] ?? '/') : vhost;
  // It narrowed what the user may do, so taking it away allows more.
  const clear = async (one: TopicPermission): Promise<void> => {
    const yes = await confirmLoss({
      title: 'Take this topic permission away?',
      loss: `${name} may then use every routing key with ${one.exchange} in ${one.vhost}.`,
      action: 'Take away',
    });
    if (yes && (await attempt(() => remove(apiPath('topic-permissions', one.vhost, name, one.exchange)), 'Topic permission taken away.'))) await list.refresh();
  };
  if (list.error) return list.error.missing ? null : <ErrorNote error={list.error} />;
  const columns: Column<TopicPermission>[] = [
    { id: 'vhost', title: 'Virtual host', render: (one) => one.vhost },
    { id: 'exchange', title: 'Exchange', render: (one) => <code>{one.exchange}</code> },
    { id: 'write', title: 'Publish keys', render: (one) => <code>{one.write}</code> },
    { id: 'read', title: 'Bind keys', render: (one) => <code>{one.read}</code> },
    { id: 'clear', title: '', render: (one) => (
      <button class="button button-small" aria-label={`Take away topic permission on ${one.exchange} in ${one.vhost}`}
        onClick={() => void clear(one)}>Take away</button>
    ) },
  ];
  return (
    <Card title="Topic permissions">
      <p class="muted card-lead">Narrow which routing keys may be used with a topic exchange. Without any, all may.</p>
      {(list.data ?? []).length > 0 && <DataTable stacked label="Topic permissions" columns={columns} rows={list.data ?? []} rowKey={(one) => `${one.vhost}\n${one.exchange}`} />}
      <div class="gap-top">
        <Form label="Set topic permission" action="Set topic permission" onSubmit={async () => {
          await put(apiPath('topic-permissions', where, name), { exchange, write, read });
          toast('Topic permission set.');
          await list.refresh();
        }}>
          <SelectField label="Virtual host" value={where} onInput={setVhost} options={vhosts} />
          <TextField label="Exchange" value={exchange} onInput={setExchange} required />
          <TextField label="Publish keys" value={write} onInput={setWrite} />
          <TextField label="Bind keys" value={read} onInput={setRead} />
        </Form>
      </div>
    </Card>
  );
}

export function UserPage({ name }: { name: string }) {
  const scope = useScope();
  const user = useOnce<Stored>(apiPath('users', name));
  const permissions = useOnce<Permission[]>(apiPath('users', name, 'permissions'));
  const vhosts = scope.vhosts.map((one) => one.name);
  const parent = { label: 'Users', to: '#/users' };
  if (user.data === undefined) {
    return <><PageHead title={name} parent={parent} />{user.error ? <ErrorNote error={user.error} /> : <Loading />}</>;
  }
  const again = (): void => void permissions.refresh();
  return (
    <>
      <PageHead title={name} parent={parent} sub={tagsOf(user.data).map((tag) => <Badge key={tag}>{tag}</Badge>)}>
        <button class="button button-danger" onClick={() => void deleteUser(name, scope.session.name).then((done) => done && go('#/users'))}>Delete user</button>
      </PageHead>
      <Card title="Permissions">
        {(permissions.data ?? []).length > 0 ? <PermissionTable permissions={permissions.data ?? []} show="vhost" onChange={again} /> : <p class="note note-warn card-lead"><span>This user may not enter any virtual host yet.</span></p>}
        <div class="gap-top"><PermissionForm user={name} names={vhosts} onDone={again} /></div>
      </Card>
      <TopicPermissions name={name} vhosts={vhosts} />
      <Card title="Change this user"><EditUser user={user.data} onDone={() => void user.refresh()} /></Card>
    </>
  );
}
