import { useState } from 'preact/hooks';
import { apiPath, put, remove } from '../../api/client';
import { useOnce } from '../../api/live';
import type { Policy } from '../../api/types';
import { Badge } from '../../components/badge';
import { Card, Empty } from '../../components/card';
import { type Column, DataTable } from '../../components/data-table';
import { confirmLoss } from '../../components/dialog';
import { Form, SelectField, TableEditor, TextField } from '../../components/forms';
import { PageHead } from '../../components/page-head';
import { ErrorNote, Loading } from '../../components/status-notes';
import { attempt, toast } from '../../components/toasts';
import { readTable, type TableRow, wholeNumber } from '../../lib/argument-values';
import { value } from '../../lib/format';
import { POLICY_KEYS } from '../../lib/queue-arguments';
import { defaultVhost, isAdmin, useScope } from '../../lib/session';
import { type Sorting, sorted } from '../../lib/sort';

type Kind = 'policies' | 'operator-policies';

const APPLY_TO = ['all', 'queues', 'classic_queues', 'quorum_queues', 'streams', 'exchanges'];

async function deletePolicy(kind: Kind, policy: Policy, onDone: () => void): Promise<void> {
  const confirmed = await confirmLoss({
    title: `Delete policy ${policy.name}?`,
    loss: `Objects in ${policy.vhost} that match ${policy.pattern} will get the matching policy with the next lower priority, or none.`,
    action: 'Delete policy',
  });
  if (
    confirmed &&
    (await attempt(
      () => remove(apiPath(kind, policy.vhost, policy.name)),
      `Policy ${policy.name} deleted.`,
    ))
  )
    onDone();
}

function KeyHelp({ rows }: { rows: readonly TableRow[] }) {
  const known = POLICY_KEYS.filter((item) => rows.some((row) => row.key === item.key));
  if (known.length === 0) return null;
  return (
    <ul class="field-wide help">
      {known.map((item) => (
        <li key={item.key}>
          <code>{item.key}</code> {item.help}
        </li>
      ))}
    </ul>
  );
}

function PolicyForm({ kind, onDone }: { kind: Kind; onDone: () => void }) {
  const scope = useScope();
  const [vhost, setVhost] = useState(defaultVhost(scope));
  const [name, setName] = useState('');
  const [pattern, setPattern] = useState('');
  const [apply, setApply] = useState('queues');
  const [priority, setPriority] = useState('0');
  const [rows, setRows] = useState<TableRow[]>([{ key: '', kind: 'number', text: '' }]);
  // A known key sets the type of its value.
  const change = (next: TableRow[]): void =>
    setRows(
      next.map((row, index) =>
        row.key === rows[index]?.key
          ? row
          : { ...row, kind: POLICY_KEYS.find((item) => item.key === row.key)?.kind ?? row.kind },
      ),
    );
  const submit = async (): Promise<void> => {
    await put(apiPath(kind, vhost, name), {
      pattern,
      'apply-to': apply,
      priority: wholeNumber('Priority', priority),
      definition: readTable(rows),
    });
    toast(`Policy ${name} saved.`);
    onDone();
  };
  return (
    <Form label="Add policy" action="Save policy" testid={`add-${kind}`} onSubmit={submit}>
      <TextField label="Name" value={name} onInput={setName} required />
      <SelectField
        label="Virtual host"
        value={vhost}
        onInput={setVhost}
        options={scope.vhosts.map((item) => item.name)}
      />
      <TextField
        label="Pattern"
        value={pattern}
        onInput={setPattern}
        required
        placeholder="^orders\."
        help="A regular expression for names."
      />
      <SelectField
        label="Applies to"
        value={apply}
        onInput={setApply}
        options={
          kind === 'operator-policies'
            ? APPLY_TO.filter((target) => target !== 'all' && target !== 'exchanges')
            : APPLY_TO
        }
      />
      <TextField
        label="Priority"
        value={priority}
        onInput={setPriority}
        help="Only the matching policy with the highest priority applies."
      />
      <TableEditor
        label="Definition"
        rows={rows}
        onChange={change}
        keys={POLICY_KEYS.map((item) => item.key)}
        help="Keys are those of queue arguments without the x- prefix."
      />
      <KeyHelp rows={rows} />
    </Form>
  );
}

function PolicyList({ kind, title, lead }: { kind: Kind; title: string; lead: string }) {
  const { vhost } = useScope();
  const list = useOnce<Policy[]>(vhost === '' ? `/api/${kind}` : apiPath(kind, vhost));
  const [sorting, setSorting] = useState<Sorting>({ by: 'priority', descending: true });
  const refresh = (): void => void list.refresh();
  const columns: Column<Policy>[] = [
    {
      id: 'name',
      title: 'Name',
      sort: 'name',
      render: (policy) => (
        <>
          <strong>{policy.name}</strong> <span class="vhost-tag">{policy.vhost}</span>
        </>
      ),
    },
    {
      id: 'pattern',
      title: 'Pattern',
      sort: 'pattern',
      render: (policy) => <code>{policy.pattern}</code>,
    },
    {
      id: 'apply',
      title: 'Applies to',
      sort: 'apply-to',
      render: (policy) => policy['apply-to'].replace('_', ' '),
    },
    {
      id: 'definition',
      title: 'Definition',
      render: (policy) => (
        <span class="badges">
          {Object.entries(policy.definition).map(([key, of]) => (
            <Badge key={key}>
              {key}: {value(of)}
            </Badge>
          ))}
        </span>
      ),
    },
    {
      id: 'priority',
      title: 'Priority',
      sort: 'priority',
      numeric: true,
      render: (policy) => policy.priority,
    },
    {
      id: 'delete',
      title: '',
      render: (policy) => (
        <button
          type="button"
          class="button button-small button-danger"
          aria-label={`Delete policy ${policy.name}`}
          onClick={() => void deletePolicy(kind, policy, refresh)}
        >
          Delete
        </button>
      ),
    },
  ];
  return (
    <Card title={title} testid={kind}>
      <p class="muted card-lead">{lead}</p>
      {list.error && <ErrorNote error={list.error} />}
      {list.loading && <Loading />}
      {list.data?.length === 0 && (
        <Empty title="No policies">
          <p>A policy takes effect at once, also on queues that already exist.</p>
        </Empty>
      )}
      {list.data && list.data.length > 0 && (
        <DataTable
          stacked
          label={title}
          columns={columns}
          rows={sorted(list.data, sorting)}
          rowKey={(policy) => `${policy.vhost}\n${policy.name}`}
          sorting={sorting}
          onSort={setSorting}
        />
      )}
      <details class="gap-top">
        <summary class="button">Add policy</summary>
        <div class="gap-top">
          <PolicyForm kind={kind} onDone={refresh} />
        </div>
      </details>
    </Card>
  );
}

export function PoliciesPage() {
  const { session } = useScope();
  return (
    <>
      <PageHead
        title="Policies"
        sub="Settings for all queues and exchanges whose names match a pattern."
      />
      <PolicyList
        kind="policies"
        title="Policies"
        lead="For the owners of applications. A queue’s arguments apply too; of two limits, the smaller one counts."
      />
      {isAdmin(session) && (
        <PolicyList
          kind="operator-policies"
          title="Operator policies"
          lead="For operators of the broker. They limit what policies and arguments can set."
        />
      )}
    </>
  );
}
