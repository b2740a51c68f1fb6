import { useState } from 'preact/hooks';
import { apiPath, put } from '../api/client';
import { ArgField } from '../components/ArgField';
import { Card, PageHead } from '../components/basics';
import { toast } from '../components/feedback';
import { CheckField, Form, SelectField, TableEditor, TextField } from '../components/forms';
import { readTable, type TableRow } from '../lib/arguments';
import { EXCHANGE_TYPE_HELP, exchangeArgs, readExchangeArgs } from '../lib/exchange-arguments';
import { go } from '../lib/hooks';
import { href } from '../lib/route';
import { homeVhost, useScope } from '../lib/session';

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
  const [texts, setTexts] = useState<Record<string, string>>({});
  const [rows, setRows] = useState<TableRow[]>([]);
  const offered = (scope.overview?.exchange_types ?? []).map((one) => one.name);
  const types = [...USUAL, ...offered.filter((one) => !USUAL.includes(one)).sort()];
  const submit = async (): Promise<void> => {
    const plain = alternate === '' ? {} : { 'alternate-exchange': alternate };
    const args = { ...plain, ...readExchangeArgs(type, texts), ...readTable(rows) };
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
          <SelectField label="Type" value={type} onInput={setType} options={types} help={EXCHANGE_TYPE_HELP[type]} />
          {exchangeArgs(type).map((spec) => (
            <ArgField key={spec.key} spec={spec} value={texts[spec.key] ?? ''} onInput={(text) => setTexts({ ...texts, [spec.key]: text })} />
          ))}
          <TextField label="Alternate exchange" value={alternate} onInput={setAlternate} placeholder="not set" help="Gets the messages that match no binding, instead of dropping them." />
          <CheckField label="Durable" checked={durable} onInput={setDurable} help="Survives a restart of the broker." />
          <CheckField label="Auto-delete" checked={autoDelete} onInput={setAutoDelete} help="Deleted when its last binding goes." />
          <CheckField label="Internal" checked={internal} onInput={setInternal} help="Only other exchanges can send to it, no client." />
          <TableEditor label="Other arguments" rows={rows} onChange={setRows} />
        </Form>
      </Card>
    </>
  );
}
