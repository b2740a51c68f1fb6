import { useState } from 'preact/hooks';
import { apiPath, put } from '../api/client';
import { Card, PageHead } from '../components/basics';
import { toast } from '../components/feedback';
import { CheckField, Form, SelectField, TableEditor, TextField } from '../components/forms';
import { readTable, type TableRow } from '../lib/arguments';
import { go } from '../lib/hooks';
import { href } from '../lib/route';
import { homeVhost, useScope } from '../lib/session';

const TYPE_HELP: Record<string, string> = {
  direct: 'Sends to queues bound with exactly the message’s routing key.',
  topic: 'Matches keys word by word: * is one word, # any number.',
  fanout: 'Sends to every bound queue, whatever the key.',
  headers: 'Matches message headers against the binding’s arguments.',
  'x-delayed-message': 'Holds each message for its x-delay milliseconds first; needs the argument x-delayed-type.',
  'x-consistent-hash': 'Spreads keys over the bound queues; the binding key is the weight.',
  'x-modulus-hash': 'Spreads keys evenly over the bound queues.',
  'x-random': 'Sends to one bound queue, picked at random.',
  'x-recent-history': 'A fanout that gives newly bound queues the last messages first.',
};
const USUAL = ['direct', 'topic', 'fanout', 'headers'];

export function NewExchangePage() {
  const scope = useScope();
  const [vhost, setVhost] = useState(homeVhost(scope));
  const [name, setName] = useState('');
  const [type, setType] = useState('direct');
  const [durable, setDurable] = useState(true);
  const [autoDelete, setAutoDelete] = useState(false);
  const [internal, setInternal] = useState(false);
  const [alternate, setAlternate] = useState('');
  const [rows, setRows] = useState<TableRow[]>([]);
  const offered = (scope.overview?.exchange_types ?? []).map((one) => one.name);
  const types = [...USUAL, ...offered.filter((one) => !USUAL.includes(one)).sort()];
  const submit = async (): Promise<void> => {
    const args = { ...(alternate === '' ? {} : { 'alternate-exchange': alternate }), ...readTable(rows) };
    await put(apiPath('exchanges', vhost, name), { type, durable, auto_delete: autoDelete, internal, arguments: args });
    toast(`Exchange ${name} is there.`);
    go(href(['exchanges', vhost, name]));
  };
  return (
    <>
      <PageHead title="Declare an exchange" parent={{ label: 'Exchanges', to: '#/exchanges' }} />
      <Card>
        <Form label="Declare an exchange" action="Declare exchange" testid="declare-exchange" onSubmit={submit}>
          <TextField label="Name" value={name} onInput={setName} required help="amq. is reserved." />
          <SelectField label="Virtual host" value={vhost} onInput={setVhost} options={scope.vhosts.map((one) => one.name)} />
          <SelectField label="Type" value={type} onInput={setType} options={types} help={TYPE_HELP[type]} />
          <TextField label="Alternate exchange" value={alternate} onInput={setAlternate} placeholder="not set" help="Gets the messages that match no binding, instead of dropping them." />
          <CheckField label="Durable" checked={durable} onInput={setDurable} help="Survives a restart of the broker." />
          <CheckField label="Auto-delete" checked={autoDelete} onInput={setAutoDelete} help="Deleted when its last binding goes." />
          <CheckField label="Internal" checked={internal} onInput={setInternal} help="Only other exchanges can send to it, no client." />
          <TableEditor label="Arguments" rows={rows} onChange={setRows} />
        </Form>
      </Card>
    </>
  );
}
