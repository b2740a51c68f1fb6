import { useState } from 'preact/hooks';
import { apiPath, put, remove } from '../../api/client';
import { useOnce } from '../../api/live';
import type { User, UserLimits, VhostLimits } from '../../api/types';
import { Card } from '../../components/card';
import { type Column, DataTable } from '../../components/data-table';
import { confirmLoss } from '../../components/dialog';
import { Form, SelectField, TextField } from '../../components/forms';
import { PageHead } from '../../components/page-head';
import { Loading, NotSupported } from '../../components/status-notes';
import { attempt, toast } from '../../components/toasts';
import { wholeNumber } from '../../lib/argument-values';
import { count } from '../../lib/format';
import { useScope } from '../../lib/session';

type Kind = 'vhost-limits' | 'user-limits';

interface Row {
  owner: string;
  limit: string;
  amount: number;
}

const NAMES: Record<Kind, readonly { id: string; label: string }[]> = {
  'vhost-limits': [
    { id: 'max-connections', label: 'Connections' },
    { id: 'max-queues', label: 'Queues' },
  ],
  'user-limits': [
    { id: 'max-connections', label: 'Connections' },
    { id: 'max-channels', label: 'Channels' },
  ],
};

function rowsOf(sets: readonly (VhostLimits | UserLimits)[]): Row[] {
  return sets.flatMap((set) =>
    Object.entries(set.value).map(([limit, amount]) => ({
      owner: 'vhost' in set ? set.vhost : set.user,
      limit,
      amount,
    })),
  );
}

function LimitForm({
  kind,
  owners,
  onDone,
}: {
  kind: Kind;
  owners: readonly string[];
  onDone: () => void;
}) {
  const [owner, setOwner] = useState('');
  const [limit, setLimit] = useState(NAMES[kind][0]?.id ?? '');
  const [amount, setAmount] = useState('');
  const chosen = owner === '' ? (owners[0] ?? '') : owner;
  const submit = async (): Promise<void> => {
    await put(apiPath(kind, chosen, limit), { value: wholeNumber('Maximum', amount) });
    toast('Limit saved.');
    setAmount('');
    onDone();
  };
  return (
    <Form
      label={`Set a limit (${kind})`}
      action="Set limit"
      testid={`add-${kind}`}
      onSubmit={submit}
    >
      <SelectField
        label={kind === 'vhost-limits' ? 'Virtual host' : 'User'}
        value={chosen}
        onInput={setOwner}
        options={owners}
      />
      <SelectField label="Limit" value={limit} onInput={setLimit} options={NAMES[kind]} />
      <TextField
        label="Maximum"
        type="number"
        min={-1}
        value={amount}
        onInput={setAmount}
        required
        help="0 allows none; −1 means no limit."
      />
    </Form>
  );
}

function LimitCard({
  kind,
  title,
  owners,
}: {
  kind: Kind;
  title: string;
  owners: readonly string[];
}) {
  const list = useOnce<(VhostLimits | UserLimits)[]>(`/api/${kind}`);
  const removeLimit = async (row: Row): Promise<void> => {
    const confirmed = await confirmLoss({
      title: 'Remove this limit?',
      loss: `${row.limit} of ${row.owner} will be unlimited.`,
      action: 'Remove limit',
    });
    if (
      confirmed &&
      (await attempt(() => remove(apiPath(kind, row.owner, row.limit)), 'Limit removed.'))
    )
      await list.refresh();
  };
  const columns: Column<Row>[] = [
    {
      id: 'owner',
      title: kind === 'vhost-limits' ? 'Virtual host' : 'User',
      render: (row) => row.owner,
    },
    {
      id: 'limit',
      title: 'Limit',
      render: (row) => NAMES[kind].find((limit) => limit.id === row.limit)?.label ?? row.limit,
    },
    { id: 'amount', title: 'Maximum', numeric: true, render: (row) => count(row.amount) },
    {
      id: 'remove',
      title: '',
      render: (row) => (
        <button
          type="button"
          class="button button-small"
          aria-label={`Remove ${row.limit} of ${row.owner}`}
          onClick={() => void removeLimit(row)}
        >
          Remove
        </button>
      ),
    },
  ];
  const rows = rowsOf(list.data ?? []);
  return (
    <Card title={title} testid={kind}>
      {list.error && <NotSupported feature="these limits" error={list.error} />}
      {list.loading && <Loading />}
      {list.data && rows.length === 0 && <p class="muted">No limits set.</p>}
      {rows.length > 0 && (
        <DataTable
          stacked
          label={title}
          columns={columns}
          rows={rows}
          rowKey={(row) => `${row.owner}\n${row.limit}`}
        />
      )}
      {!list.error && (
        <div class="gap-top">
          <LimitForm kind={kind} owners={owners} onDone={() => void list.refresh()} />
        </div>
      )}
    </Card>
  );
}

export function LimitsPage() {
  const { vhosts } = useScope();
  const users = useOnce<User[]>('/api/users');
  return (
    <>
      <PageHead
        title="Limits"
        sub="How many connections, channels and queues a virtual host or a user can have."
      />
      <LimitCard
        kind="vhost-limits"
        title="Virtual hosts"
        owners={vhosts.map((vhost) => vhost.name)}
      />
      <LimitCard
        kind="user-limits"
        title="Users"
        owners={(users.data ?? []).map((user) => user.name)}
      />
    </>
  );
}
