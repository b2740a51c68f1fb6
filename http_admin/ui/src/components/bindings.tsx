/** Bindings of a queue or exchange: a table and a form to add one. */

import { useState } from 'preact/hooks';
import { apiPath, post, remove } from '../api/client';
import type { Binding } from '../api/types';
import { readTable, type TableRow } from '../lib/argument-values';
import { exchangeName, value } from '../lib/format';
import { type Column, DataTable } from './data-table';
import { confirmLoss } from './dialog';
import { Form, SelectField, TableEditor, TextField } from './forms';
import { ExchangeLink, QueueLink } from './links';
import { attempt, toast } from './toasts';

type End = 'source' | 'destination';

function bindingPath(binding: Binding): string {
  const kind = binding.destination_type === 'queue' ? 'q' : 'e';
  return apiPath('bindings', binding.vhost, 'e', binding.source, kind, binding.destination);
}

async function unbind(binding: Binding, onDone: () => void): Promise<void> {
  const key = binding.routing_key === '' ? '' : ` with routing key ${binding.routing_key}`;
  const confirmed = await confirmLoss({
    title: 'Remove this binding?',
    loss: `${exchangeName(binding.source)} will no longer route messages${key} to ${binding.destination}. Messages that are already there stay.`,
    action: 'Unbind',
  });
  if (!confirmed) return;
  const done = await attempt(
    () => remove(`${bindingPath(binding)}/${encodeURIComponent(binding.properties_key)}`),
    'Binding removed.',
  );
  if (done) onDone();
}

function EndLink({ binding, end }: { binding: Binding; end: End }) {
  if (end === 'source') return <ExchangeLink vhost={binding.vhost} name={binding.source} plain />;
  if (binding.destination_type === 'queue')
    return <QueueLink vhost={binding.vhost} name={binding.destination} plain />;
  return (
    <>
      <ExchangeLink vhost={binding.vhost} name={binding.destination} plain />{' '}
      <span class="vhost-tag">exchange</span>
    </>
  );
}

export function BindingTable({
  bindings,
  show,
  label,
  onChange,
}: {
  bindings: readonly Binding[];
  show: End;
  label: string;
  onChange: () => void;
}) {
  const columns: Column<Binding>[] = [
    {
      id: 'end',
      title: show === 'source' ? 'Source exchange' : 'Destination',
      render: (binding) => <EndLink binding={binding} end={show} />,
    },
    {
      id: 'key',
      title: 'Routing key',
      render: (binding) =>
        binding.routing_key === '' ? (
          <span class="muted">(empty)</span>
        ) : (
          <code>{binding.routing_key}</code>
        ),
    },
    {
      id: 'args',
      title: 'Arguments',
      minor: true,
      render: (binding) =>
        Object.keys(binding.arguments).length === 0 ? (
          <span class="muted">none</span>
        ) : (
          <code>
            {Object.entries(binding.arguments)
              .map(([key, of]) => `${key}=${value(of)}`)
              .join(', ')}
          </code>
        ),
    },
    {
      id: 'unbind',
      title: '',
      render: (binding) => (
        <button
          type="button"
          class="button button-small"
          aria-label={`Unbind ${binding.destination} from ${exchangeName(binding.source)}`}
          onClick={() => void unbind(binding, onChange)}
        >
          Unbind
        </button>
      ),
    },
  ];
  return (
    <DataTable
      stacked
      label={label}
      testid={`bindings-${show}`}
      columns={columns}
      rows={bindings}
      rowKey={(binding) => `${bindingPath(binding)}\n${binding.properties_key}`}
    />
  );
}

/** Binds the given queue to an exchange, or something to the given source exchange. */
export function BindForm({
  vhost,
  source,
  queue,
  names,
  onDone,
}: {
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
    await post(apiPath('bindings', vhost, 'e', from, type, to), {
      routing_key: key,
      arguments: readTable(rows),
    });
    toast(`${to} bound to ${exchangeName(from)}.`);
    setKey('');
    onDone();
  };
  return (
    <Form label="Add a binding" action="Bind" testid="bind" onSubmit={submit}>
      {source !== undefined && (
        <SelectField
          label="Destination type"
          value={kind}
          onInput={setKind}
          options={['queue', 'exchange']}
        />
      )}
      <TextField
        label={source === undefined ? 'Exchange' : `Name of the ${kind}`}
        value={other}
        onInput={setOther}
        required
        list={names}
      />
      <TextField
        label="Routing key"
        value={key}
        onInput={setKey}
        help="Topic exchanges: * is one word, # is any number of words."
      />
      <TableEditor
        label="Arguments"
        rows={rows}
        onChange={setRows}
        help="Headers exchanges match these; x-match is all or any."
      />
    </Form>
  );
}
