import { useState } from 'preact/hooks';
import { apiPath, put } from '../api/client';
import { ArgField } from '../components/ArgField';
import { Card, PageHead } from '../components/basics';
import { toast } from '../components/feedback';
import { CheckField, Form, SelectField, TableEditor, TextField } from '../components/forms';
import { argsFor, QUEUE_TYPES, readArgs, readTable, type QueueKind, type TableRow } from '../lib/arguments';
import { go, useRoute } from '../lib/hooks';
import { href } from '../lib/route';
import { homeVhost, useScope } from '../lib/session';

const KINDS: readonly { id: QueueKind; label: string }[] = [
  { id: 'classic', label: 'Classic' },
  { id: 'quorum', label: 'Quorum' },
  { id: 'stream', label: 'Log' },
];
const GROUPS = ['Log', 'Limits', 'Dead lettering', 'Delivery', 'Deduplication'] as const;

function KindPicker({ kind, onPick }: { kind: QueueKind; onPick: (kind: QueueKind) => void }) {
  return (
    <fieldset class="field field-wide">
      <legend>Type</legend>
      <div class="kinds">
        {KINDS.map((one) => (
          <label class="kind" key={one.id}>
            <input type="radio" name="type" value={one.id} checked={kind === one.id} onChange={() => onPick(one.id)} />
            <span><strong>{one.label}</strong>{QUEUE_TYPES[one.id]}</span>
          </label>
        ))}
      </div>
    </fieldset>
  );
}

export function NewQueuePage() {
  const scope = useScope();
  const [vhost, setVhost] = useState(homeVhost(scope));
  const [name, setName] = useState('');
  const { query } = useRoute();
  const [kind, setKind] = useState<QueueKind>(KINDS.find((one) => one.id === query['type'])?.id ?? 'classic');
  const [durable, setDurable] = useState(true);
  const [autoDelete, setAutoDelete] = useState(false);
  const [texts, setTexts] = useState<Record<string, string>>({});
  const [extra, setExtra] = useState<TableRow[]>([]);
  const specs = argsFor(kind);
  const submit = async (): Promise<void> => {
    const byDefault = scope.vhosts.find((one) => one.name === vhost)?.default_queue_type;
    const args = { ...readArgs(kind, texts, byDefault), ...readTable(extra) };
    const plain = kind === 'classic';
    await put(apiPath('queues', vhost, name), { durable: plain ? durable : true, auto_delete: plain && autoDelete, arguments: args });
    toast(`Queue ${name} is there.`);
    go(kind === 'stream' && args['x-partitions'] !== undefined ? href(['logs', vhost, name]) : href(['queues', vhost, name]));
  };
  return (
    <>
      <PageHead title="Declare a queue" parent={{ label: 'Queues', to: '#/queues' }} sub="Everything but the name can stay as it is." />
      <Card>
        <Form label="Declare a queue" action="Declare queue" testid="declare-queue" onSubmit={submit}>
          <TextField label="Name" value={name} onInput={setName} required help="Letters, digits, dots and dashes read best; amq. is reserved." />
          <SelectField label="Virtual host" value={vhost} onInput={setVhost} options={scope.vhosts.map((one) => one.name)} />
          <KindPicker kind={kind} onPick={setKind} />
          {kind === 'classic' && (
            <>
              <CheckField label="Durable" checked={durable} onInput={setDurable} help="Survives a restart of the broker, with its persistent messages." />
              <CheckField label="Auto-delete" checked={autoDelete} onInput={setAutoDelete} help="Deleted when its last consumer leaves." />
            </>
          )}
          {GROUPS.filter((group) => specs.some((spec) => spec.group === group)).map((group) => (
            <fieldset class="form-group" key={group}>
              <legend>{group}</legend>
              {specs.filter((spec) => spec.group === group).map((spec) => (
                <ArgField key={spec.key} spec={spec} value={texts[spec.key] ?? ''} onInput={(text) => setTexts({ ...texts, [spec.key]: text })} />
              ))}
            </fieldset>
          ))}
          <TableEditor label="Other arguments" rows={extra} onChange={setExtra} help="Any argument not listed above." />
        </Form>
      </Card>
    </>
  );
}
