/** Bindings of a queue or exchange, with unbind and a form for a new one. */

import { useState } from 'preact/hooks';
import { apiPath, post, remove } from '../api/client';
import type { Binding } from '../api/types';
import { readTable, type TableRow } from '../lib/arguments';
import { exchangeName, value } from '../lib/format';
import { DataTable, type Column } from './DataTable';
import { attempt, confirmLoss, toast } from './feedback';
import { Form, SelectField, TableEditor, TextField } from './forms';
import { ExchangeLink, QueueLink } from './links';

type End = 'source' | 'destination';

function bindingPath(binding: Binding): string {
  const kind = binding.destination_type === 'queue' ? 'q' : 'e';
  return apiPath('bindings', binding.vhost, 'e', binding.source, kind, binding.destination);
}

async function unbind(binding: Binding, after: () => void): Promise<void> {
  const key = binding.routing_key === '' ? '' : ` with key ${binding.routing_key}`;
  const yes = await confirmLoss({
    title: 'Remove this binding?',
    loss: `${exchangeName(binding.source)} will no longer send messages${key} to ${binding.destination}. Messages already there stay.`,
    action: 'Unbind',
  });
  if (!yes) return;
  const done = await attempt(() => remove(`${bindingPath(binding)}/${encodeURIComponent(binding.properties_key ?? '~')}`), 'Unbound.');
  if (done) after();
}

function EndLink({ binding, end }: { binding: Binding; end: End }) {
  if (end === 'source') return <ExchangeLink vhost={binding.vhost} name={binding.source} plain />;
  if (binding.destination_type === 'queue') return <QueueLink vhost={binding.vhost} name={binding.destination} plain />;
  return <><ExchangeLink vhost={binding.vhost} name={binding.destination} plain /> <span class="vhost-tag">exchange</span></>;
}

export function BindingTable({ bindings, show, label, onChange }: { bindings: readonly Binding[]; show: End; label: string; onChange: () => void }) {
  const columns: Column<Binding>[] = [
    { id: 'end', title: show === 'source' ? 'From exchange' : 'To', render: (one) => <EndLink binding={one} end={show} /> },
    { id: 'key', title: 'Routing key', render: (one) => (one.routing_key === '' ? <span class="muted">(empty)</span> : <code>{one.routing_key}</code>) },
    { id: 'args', title: 'Arguments', minor: true, render: (one) => (
      Object.keys(one.arguments).length === 0 ? <span class="muted">none</span> : <code>{Object.entries(one.arguments).map(([key, of]) => `${key}=${value(of)}`).join(', ')}</code>
    ) },
    { id: 'unbind', title: '', render: (one) => (
      <button class="button button-small" aria-label={`Unbind ${one.destination} from ${exchangeName(one.source)}`} onClick={() => void unbind(one, onChange)}>Unbind</button>
    ) },
  ];
  return <DataTable stacked label={label} testid={`bindings-${show}`} columns={columns} rows={bindings} rowKey={(one) => `${bindingPath(one)}\n${one.properties_key}`} />;
}

/** Binds to a queue (given as destination) or from an exchange (given as source). */
export function BindForm({ vhost, source, queue, names, onDone }: {
  vhost: string;
  source?: string;
  queue?: string;
  names: readonly string[];
  onDone: () => void;
}) {
  const [other, setOther] = useState('');
  const [kind, setKind] = useState('queue');
  const [key, setKey] = useState('');
  const [rows, setRows] = useState<TableRow[]>([]);
  const submit = async (): Promise<void> => {
    const from = source ?? other;
    const to = queue ?? other;
    const type = queue !== undefined || kind === 'queue' ? 'q' : 'e';
    await post(apiPath('bindings', vhost, 'e', from, type, to), { routing_key: key, arguments: readTable(rows) });
    toast(`${to} is bound to ${exchangeName(from)}.`);
    setKey('');
    onDone();
  };
  return (
    <Form label="Add a binding" action="Bind" testid="bind" onSubmit={submit}>
      {source !== undefined && <SelectField label="Bind to a" value={kind} onInput={setKind} options={['queue', 'exchange']} />}
      <TextField label={source === undefined ? 'Exchange' : `Name of the ${kind}`} value={other} onInput={setOther} required list={names} />
      <TextField label="Routing key" value={key} onInput={setKey} help="Topic exchanges: * stands for one word, # for any number of words." />
      <TableEditor label="Arguments" rows={rows} onChange={setRows} help="Headers exchanges match these; x-match says all or any." />
    </Form>
  );
}
