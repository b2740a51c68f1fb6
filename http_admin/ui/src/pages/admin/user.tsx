import { useEffect, useState } from 'preact/hooks';
import { apiPath, get, put, remove } from '../../api/client';
import { useOnce } from '../../api/live';
import type { Permission, TopicPermission, User } from '../../api/types';
import { Badge } from '../../components/badge';
import { Card } from '../../components/card';
import { type Column, DataTable } from '../../components/data-table';
import { confirmLoss } from '../../components/dialog';
import { CheckField, Form, SelectField, TextField } from '../../components/forms';
import { PageHead } from '../../components/page-head';
import { PermissionForm, PermissionTable } from '../../components/permissions';
import { ErrorNote, Loading } from '../../components/status-notes';
import { attempt, toast } from '../../components/toasts';
import { navigate } from '../../lib/navigation';
import { useScope } from '../../lib/session';
import { deleteUser, TagPicker } from './users';

type StoredPassword = Pick<User, 'password_hash' | 'hashing_algorithm'>;

/** The API requires a password with every change: here the stored hash, which is read again first. */
async function storedPassword(name: string): Promise<StoredPassword> {
  const { password_hash, hashing_algorithm } = await get<User>(apiPath('users', name));
  return { password_hash, hashing_algorithm };
}

function EditUser({ user, onDone }: { user: User; onDone: () => void }) {
  const [password, setPassword] = useState('');
  const [noPassword, setNoPassword] = useState(false);
  const [tags, setTags] = useState(user.tags);
  useEffect(() => setTags(user.tags), [user]);
  const submit = async (): Promise<void> => {
    const secret = noPassword
      ? { password_hash: '' }
      : password !== ''
        ? { password }
        : await storedPassword(user.name);
    await put(apiPath('users', user.name), { ...secret, tags: tags.join(',') });
    toast(`User ${user.name} saved.`);
    setPassword('');
    onDone();
  };
  return (
    <Form label="Edit user" action="Save" testid="edit-user" onSubmit={submit}>
      <TextField
        label="New password"
        type="password"
        autocomplete="new-password"
        value={password}
        onInput={setPassword}
        disabled={noPassword}
        help="Leave empty to keep the current password."
      />
      <CheckField
        label="No password"
        checked={noPassword}
        onInput={setNoPassword}
        help="The user can no longer sign in with a password."
      />
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
  const selected = vhost === '' ? (vhosts[0] ?? '/') : vhost;
  // A topic permission restricts the user, so revoking it allows more.
  const revoke = async (permission: TopicPermission): Promise<void> => {
    const confirmed = await confirmLoss({
      title: 'Revoke this topic permission?',
      loss: `${name} will be able to use every routing key with ${permission.exchange} in ${permission.vhost}.`,
      action: 'Revoke',
    });
    if (
      confirmed &&
      (await attempt(
        () => remove(apiPath('topic-permissions', permission.vhost, name, permission.exchange)),
        'Topic permission revoked.',
      ))
    )
      await list.refresh();
  };
  if (list.error) return list.error.missing ? null : <ErrorNote error={list.error} />;
  const columns: Column<TopicPermission>[] = [
    { id: 'vhost', title: 'Virtual host', render: (permission) => permission.vhost },
    {
      id: 'exchange',
      title: 'Exchange',
      render: (permission) => <code>{permission.exchange}</code>,
    },
    { id: 'write', title: 'Write', render: (permission) => <code>{permission.write}</code> },
    { id: 'read', title: 'Read', render: (permission) => <code>{permission.read}</code> },
    {
      id: 'revoke',
      title: '',
      render: (permission) => (
        <button
          type="button"
          class="button button-small"
          aria-label={`Revoke topic permission on ${permission.exchange} in ${permission.vhost}`}
          onClick={() => void revoke(permission)}
        >
          Revoke
        </button>
      ),
    },
  ];
  return (
    <Card title="Topic permissions">
      <p class="muted card-lead">
        They restrict which routing keys the user can use with a topic exchange. Without any, all
        keys are allowed.
      </p>
      {(list.data ?? []).length > 0 && (
        <DataTable
          stacked
          label="Topic permissions"
          columns={columns}
          rows={list.data ?? []}
          rowKey={(permission) => `${permission.vhost}\n${permission.exchange}`}
        />
      )}
      <div class="gap-top">
        <Form
          label="Set topic permission"
          action="Set topic permission"
          onSubmit={async () => {
            await put(apiPath('topic-permissions', selected, name), { exchange, write, read });
            toast('Topic permission saved.');
            await list.refresh();
          }}
        >
          <SelectField label="Virtual host" value={selected} onInput={setVhost} options={vhosts} />
          <TextField label="Exchange" value={exchange} onInput={setExchange} required />
          <TextField
            label="Write"
            value={write}
            onInput={setWrite}
            help="Pattern for the routing keys of published messages."
          />
          <TextField
            label="Read"
            value={read}
            onInput={setRead}
            help="Pattern for the routing keys of bindings."
          />
        </Form>
      </div>
    </Card>
  );
}

export function UserPage({ name }: { name: string }) {
  const scope = useScope();
  const user = useOnce<User>(apiPath('users', name));
  const permissions = useOnce<Permission[]>(apiPath('users', name, 'permissions'));
  const vhosts = scope.vhosts.map((vhost) => vhost.name);
  const parent = { label: 'Users', to: '#/users' };
  if (user.data === undefined) {
    return (
      <>
        <PageHead title={name} parent={parent} />
        {user.error ? <ErrorNote error={user.error} /> : <Loading />}
      </>
    );
  }
  const refresh = (): void => void permissions.refresh();
  return (
    <>
      <PageHead
        title={name}
        parent={parent}
        sub={user.data.tags.map((tag) => <Badge key={tag}>{tag}</Badge>)}
      >
        <button
          type="button"
          class="button button-danger"
          onClick={() =>
            void deleteUser(name, scope.session.name).then((done) => done && navigate('#/users'))
          }
        >
          Delete user
        </button>
      </PageHead>
      <Card title="Permissions">
        {(permissions.data ?? []).length > 0 ? (
          <PermissionTable permissions={permissions.data ?? []} show="vhost" onChange={refresh} />
        ) : (
          <p class="note note-warn card-lead">
            <span>This user has no access to any virtual host.</span>
          </p>
        )}
        <div class="gap-top">
          <PermissionForm user={name} names={vhosts} onDone={refresh} />
        </div>
      </Card>
      <TopicPermissions name={name} vhosts={vhosts} />
      <Card title="Edit user">
        <EditUser user={user.data} onDone={() => void user.refresh()} />
      </Card>
    </>
  );
}
