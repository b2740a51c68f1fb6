import { useState } from 'preact/hooks';
import { apiPath, put } from '../api/client';
import { ArgumentField } from '../components/argument-field';
import { Card } from '../components/card';
import { CheckField, Form, SelectField, TableEditor, TextField } from '../components/forms';
import { PageHead } from '../components/page-head';
import { toast } from '../components/toasts';
import { readTable, type TableRow } from '../lib/argument-values';
import { navigate, useRoute } from '../lib/navigation';
import {
  ARGUMENT_GROUPS,
  argumentsFor,
  QUEUE_KINDS,
  type QueueKind,
  readArguments,
} from '../lib/queue-arguments';
import { href } from '../lib/route';
import { defaultVhost, useScope } from '../lib/session';

function KindPicker({ kind, onPick }: { kind: QueueKind; onPick: (kind: QueueKind) => void }) {
  return (
    <fieldset class="field field-wide">
      <legend>Type</legend>
      <div class="kinds">
        {QUEUE_KINDS.map((item) => (
          <label class="kind" key={item.id}>
            <input
              type="radio"
              name="type"
              value={item.id}
              checked={kind === item.id}
              onChange={() => onPick(item.id)}
            />
            <span>
              <strong>{item.label}</strong>
              {item.help}
            </span>
          </label>
        ))}
      </div>
    </fieldset>
  );
}

export function NewQueuePage() {
  const scope = useScope();
  const [vhost, setVhost] = useState(defaultVhost(scope));
  const [name, setName] = useState('');
  const { query } = useRoute();
  const [kind, setKind] = useState<QueueKind>(
    QUEUE_KINDS.find((item) => item.id === query.type)?.id ?? 'classic',
  );
  const [durable, setDurable] = useState(true);
  const [autoDelete, setAutoDelete] = useState(false);
  const [texts, setTexts] = useState<Record<string, string>>({});
  const [extra, setExtra] = useState<TableRow[]>([]);
  const specs = argumentsFor(kind);
  const submit = async (): Promise<void> => {
    const defaultType = scope.vhosts.find((item) => item.name === vhost)?.default_queue_type;
    const args = { ...readArguments(kind, texts, defaultType), ...readTable(extra) };
    const isClassic = kind === 'classic';
    await put(apiPath('queues', vhost, name), {
      durable: isClassic ? durable : true,
      auto_delete: isClassic && autoDelete,
      arguments: args,
    });
    toast(`${kind === 'stream' ? 'Log' : 'Queue'} ${name} created.`);
    navigate(
      kind === 'stream' && args['x-partitions'] !== undefined
        ? href(['logs', vhost, name])
        : href(['queues', vhost, name]),
    );
  };
  return (
    <>
      <PageHead
        title="Declare a queue"
        parent={{ label: 'Queues', to: '#/queues' }}
        sub="Only the name is required."
      />
      <Card>
        <Form
          label="Declare a queue"
          action="Declare queue"
          testid="declare-queue"
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
          <KindPicker kind={kind} onPick={setKind} />
          {kind === 'classic' && (
            <>
              <CheckField
                label="Durable"
                checked={durable}
                onInput={setDurable}
                help="The queue and its persistent messages survive a restart of the broker."
              />
              <CheckField
                label="Auto-delete"
                checked={autoDelete}
                onInput={setAutoDelete}
                help="Deleted when its last consumer is cancelled."
              />
            </>
          )}
          {ARGUMENT_GROUPS.filter((group) => specs.some((spec) => spec.group === group)).map(
            (group) => (
              <fieldset class="form-group" key={group}>
                <legend>{group}</legend>
                {specs
                  .filter((spec) => spec.group === group)
                  .map((spec) => (
                    <ArgumentField
                      key={spec.key}
                      spec={spec}
                      value={texts[spec.key] ?? ''}
                      onInput={(text) => setTexts({ ...texts, [spec.key]: text })}
                    />
                  ))}
              </fieldset>
            ),
          )}
          <TableEditor
            label="Other arguments"
            rows={extra}
            onChange={setExtra}
            help="Arguments that are not listed above."
          />
        </Form>
      </Card>
    </>
  );
}
