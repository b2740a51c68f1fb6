import { useState } from 'preact/hooks';
import { apiPath, put } from '../api/client';
import { ArgumentField } from '../components/argument-field';
import { Card } from '../components/card';
import { CheckField, Form, SelectField, TableEditor, TextField } from '../components/forms';
import { PageHead } from '../components/page-head';
import { toast } from '../components/toasts';
import { readTable, type TableRow } from '../lib/argument-values';
import {
  EXCHANGE_TYPE_HELP,
  exchangeArguments,
  readExchangeArguments,
} from '../lib/exchange-arguments';
import { navigate } from '../lib/navigation';
import { href } from '../lib/route';
import { defaultVhost, useScope } from '../lib/session';

const COMMON_TYPES = ['direct', 'topic', 'fanout', 'headers'];

export function NewExchangePage() {
  const scope = useScope();
  const [vhost, setVhost] = useState(defaultVhost(scope));
  const [name, setName] = useState('');
  const [type, setType] = useState('direct');
  const [durable, setDurable] = useState(true);
  const [autoDelete, setAutoDelete] = useState(false);
  const [internal, setInternal] = useState(false);
  const [alternate, setAlternate] = useState('');
  const [texts, setTexts] = useState<Record<string, string>>({});
  const [rows, setRows] = useState<TableRow[]>([]);
  const supported = (scope.overview?.exchange_types ?? []).map((type) => type.name);
  const types = [
    ...COMMON_TYPES,
    ...supported.filter((name) => !COMMON_TYPES.includes(name)).sort(),
  ];
  const submit = async (): Promise<void> => {
    const alternateArgument = alternate === '' ? {} : { 'alternate-exchange': alternate };
    const args = {
      ...alternateArgument,
      ...readExchangeArguments(type, texts),
      ...readTable(rows),
    };
    await put(apiPath('exchanges', vhost, name), {
      type,
      durable,
      auto_delete: autoDelete,
      internal,
      arguments: args,
    });
    toast(`Exchange ${name} created.`);
    navigate(href(['exchanges', vhost, name]));
  };
  return (
    <>
      <PageHead title="Declare an exchange" parent={{ label: 'Exchanges', to: '#/exchanges' }} />
      <Card>
        <Form
          label="Declare an exchange"
          action="Declare exchange"
          testid="declare-exchange"
          onSubmit={submit}
        >
          <TextField
            label="Name"
            value={name}
            onInput={setName}
            required
            help="Names that start with amq. are reserved."
          />
          <SelectField
            label="Virtual host"
            value={vhost}
            onInput={setVhost}
            options={scope.vhosts.map((item) => item.name)}
          />
          <SelectField
            label="Type"
            value={type}
            onInput={setType}
            options={types}
            help={EXCHANGE_TYPE_HELP[type]}
          />
          {exchangeArguments(type).map((spec) => (
            <ArgumentField
              key={spec.key}
              spec={spec}
              value={texts[spec.key] ?? ''}
              onInput={(text) => setTexts({ ...texts, [spec.key]: text })}
            />
          ))}
          <TextField
            label="Alternate exchange"
            value={alternate}
            onInput={setAlternate}
            placeholder="not set"
            help="Gets the messages that match no binding. If not set, they are dropped."
          />
          <CheckField
            label="Durable"
            checked={durable}
            onInput={setDurable}
            help="Survives a restart of the broker."
          />
          <CheckField
            label="Auto-delete"
            checked={autoDelete}
            onInput={setAutoDelete}
            help="Deleted when its last binding is removed."
          />
          <CheckField
            label="Internal"
            checked={internal}
            onInput={setInternal}
            help="Clients cannot publish to it, only other exchanges can."
          />
          <TableEditor label="Other arguments" rows={rows} onChange={setRows} />
        </Form>
      </Card>
    </>
  );
}
