import { useState } from 'preact/hooks';
import { apiPath, put, remove } from '../../api/client';
import { useOnce } from '../../api/live';
import type { Policy } from '../../api/types';
import { Badge, Card, Empty, PageHead } from '../../components/basics';
import { DataTable, type Column } from '../../components/DataTable';
import { attempt, confirmLoss, ErrorNote, Loading, toast } from '../../components/feedback';
import { Form, SelectField, TableEditor, TextField } from '../../components/forms';
import { POLICY_KEYS, readTable, wholeNumber, type TableRow } from '../../lib/arguments';
import { value } from '../../lib/format';
import { sorted, type Sorting } from '../../lib/sort';
import { homeVhost, isAdmin, useScope } from '../../lib/session';

type Kind = 'policies' | 'operator-policies';

const APPLY = ['all', 'queues', 'classic_queues', 'quorum_queues', 'streams', 'exchanges'];

async function drop(kind: Kind, policy: Policy, after: () => void): Promise<void> {
  const yes = await confirmLoss({
    title: `Delete policy ${policy.name}?`,
    loss: `Everything in ${policy.vhost} that matches ${policy.pattern} goes back to the next policy, or to none. Limits it set no longer hold.`,
    action: 'Delete policy',
  });
  if (yes && (await attempt(() => remove(apiPath(kind, policy.vhost, policy.name)), `Policy ${policy.name} is deleted.`))) after();
}

function KeyHelp({ rows }: { rows: readonly TableRow[] }) {
  const known = POLICY_KEYS.filter((one) => rows.some((row) => row.key === one.key));
  if (known.length === 0) return null;
  return <ul class="field-wide help">{known.map((one) => <li key={one.key}><code>{one.key}</code> {one.help}</li>)}</ul>;
}

function PolicyForm({ kind, onDone }: { kind: Kind; onDone: () => void }) {
  const scope = useScope();
  const [vhost, setVhost] = useState(homeVhost(scope));
  const [name, setName] = useState('');
  const [pattern, setPattern] = useState('');
  const [apply, setApply] = useState('queues');
  const [priority, setPriority] = useState('0');
  const [rows, setRows] = useState<TableRow[]>([{ key: '', kind: 'number', text: '' }]);
  // A known key brings its own type along.
  const change = (next: TableRow[]): void =>
    setRows(next.map((row, index) => (row.key === rows[index]?.key ? row : { ...row, kind: POLICY_KEYS.find((one) => one.key === row.key)?.kind ?? row.kind })));
  const submit = async (): Promise<void> => {
    await put(apiPath(kind, vhost, name), { pattern, 'apply-to': apply, priority: wholeNumber('Priority', priority), definition: readTable(rows) });
    toast(`Policy ${name} is in force.`);
    onDone();
  };
  return (
    <Form label="Set a policy" action="Set policy" testid={`add-${kind}`} onSubmit={submit}>
      <TextField label="Name" value={name} onInput={setName} required />
      <SelectField label="Virtual host" value={vhost} onInput={setVhost} options={scope.vhosts.map((one) => one.name)} />
      <TextField label="Pattern" value={pattern} onInput={setPattern} required placeholder="^orders\." help="A regular expression over names." />
      <SelectField label="Applies to" value={apply} onInput={setApply} options={kind === 'operator-policies' ? APPLY.filter((one) => one !== 'all' && one !== 'exchanges') : APPLY} />
      <TextField label="Priority" value={priority} onInput={setPriority} help="The highest that matches wins; only one applies." />
      <TableEditor label="Definition" rows={rows} onChange={change} keys={POLICY_KEYS.map((one) => one.key)} help="The same keys as queue arguments, without x-." />
      <KeyHelp rows={rows} />
    </Form>
  );
}

function PolicyList({ kind, title, lead }: { kind: Kind; title: string; lead: string }) {
  const { vhost } = useScope();
  const list = useOnce<Policy[]>(vhost === '' ? `/api/${kind}` : apiPath(kind, vhost));
  const [sorting, setSorting] = useState<Sorting>({ by: 'priority', descending: true });
  const again = (): void => void list.refresh();
  const columns: Column<Policy>[] = [
    { id: 'name', title: 'Name', sort: 'name', render: (one) => <><strong>{one.name}</strong> <span class="vhost-tag">{one.vhost}</span></> },
    { id: 'pattern', title: 'Pattern', sort: 'pattern', render: (one) => <code>{one.pattern}</code> },
    { id: 'apply', title: 'Applies to', sort: 'apply-to', render: (one) => one['apply-to'].replace('_', ' ') },
    { id: 'definition', title: 'Definition', render: (one) => <span class="badges">{Object.entries(one.definition).map(([key, of]) => <Badge key={key}>{key}: {value(of)}</Badge>)}</span> },
    { id: 'priority', title: 'Priority', sort: 'priority', numeric: true, render: (one) => one.priority },
    { id: 'delete', title: '', render: (one) => <button class="button button-small button-danger" aria-label={`Delete policy ${one.name}`} onClick={() => void drop(kind, one, again)}>Delete</button> },
  ];
  return (
    <Card title={title} testid={kind}>
      <p class="muted card-lead">{lead}</p>
      {list.error && <ErrorNote error={list.error} />}
      {list.loading && <Loading />}
      {list.data?.length === 0 && <Empty title="None set"><p>Set one below: it takes effect at once, also on queues that exist already.</p></Empty>}
      {list.data && list.data.length > 0 && <DataTable stacked label={title} columns={columns} rows={sorted(list.data, sorting)} rowKey={(one) => `${one.vhost}\n${one.name}`} sorting={sorting} onSort={setSorting} />}
      <details class="gap-top"><summary class="button">Set a policy</summary><div class="gap-top"><PolicyForm kind={kind} onDone={again} /></div></details>
    </Card>
  );
}

export function PoliciesPage() {
  const { session } = useScope();
  return (
    <>
      <PageHead title="Policies" sub="Settings for all queues and exchanges whose name matches a pattern." />
      <PolicyList kind="policies" title="Policies" lead="Set by whoever runs the applications. A queue’s own arguments and the policy both count; of two limits the smaller holds." />
      {isAdmin(session) && <PolicyList kind="operator-policies" title="Operator policies" lead="Set by whoever runs the broker; they cap what policies and arguments may ask for." />}
    </>
  );
}
