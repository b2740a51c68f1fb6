/** Moves a group's committed offsets, after showing exactly where to. */

import { useState } from 'preact/hooks';
import { apiPath, post } from '../api/client';
import type { Group, OffsetMove } from '../api/types';
import { count, plural } from '../lib/format';
import { resetTarget, type ResetKind } from '../lib/logs';
import { DataTable, type Column } from './DataTable';
import { Dialog, toast, words } from './feedback';
import { Form, SelectField, TextField } from './forms';

const TARGETS: readonly { id: ResetKind; label: string }[] = [
  { id: 'first', label: 'the oldest record (read all again)' },
  { id: 'last', label: 'the last record' },
  { id: 'next', label: 'the end (only what comes next)' },
  { id: 'offset', label: 'an offset' },
  { id: 'time', label: 'a time' },
];

function consequence(move: OffsetMove): string {
  if (move.from === null) return 'starts there';
  const gap = move.to - move.from;
  if (gap === 0) return 'stays';
  return gap < 0 ? `${plural(-gap, 'record')} again` : `${plural(gap, 'record')} skipped`;
}

const COLUMNS: readonly Column<OffsetMove>[] = [
  { id: 'partition', title: 'Partition', render: (move) => move.partition },
  { id: 'from', title: 'From', numeric: true, render: (move) => count(move.from) },
  { id: 'to', title: 'To', numeric: true, render: (move) => count(move.to) },
  { id: 'effect', title: 'So', render: consequence },
];

interface ResetProps {
  vhost: string;
  log: string;
  group: Group;
  onClose: () => void;
  onDone: () => void;
}

export function OffsetReset({ vhost, log, group, onClose, onDone }: ResetProps) {
  const [kind, setKind] = useState<ResetKind>('first');
  const [text, setText] = useState('');
  const [partition, setPartition] = useState('');
  const [preview, setPreview] = useState<OffsetMove[] | null>(null);
  const [error, setError] = useState('');
  const send = (dryRun: boolean): Promise<OffsetMove[]> =>
    post<OffsetMove[]>(apiPath('logs', vhost, log, 'groups', group.group, 'reset'), {
      to: resetTarget(kind, text),
      ...(partition === '' ? {} : { partition: Number(partition) }),
      dry_run: dryRun,
    });
  const change = <T,>(set: (next: T) => void) => (next: T): void => {
    set(next);
    setPreview(null);
  };
  const apply = async (): Promise<void> => {
    try {
      await send(false);
      toast(`Offsets of ${group.group} are moved.`);
      onDone();
      onClose();
    } catch (problem) {
      setError(words(problem));
    }
  };
  const options = [{ id: '', label: 'all partitions' }, ...group.partitions.map((one) => ({ id: String(one.partition), label: `partition ${one.partition}` }))];
  return (
    <Dialog title={`Move the offsets of ${group.group}`} onClose={onClose} testid="offset-reset">
      <Form label="Move offsets" action="Preview" onSubmit={async () => setPreview(await send(true))} onCancel={onClose}>
        <SelectField wide label="Move to" value={kind} onInput={change((next: string) => setKind(next as ResetKind))} options={TARGETS} />
        <SelectField label="In" value={partition} onInput={change(setPartition)} options={options} />
        {kind === 'offset' && <TextField label="Offset" value={text} onInput={change(setText)} required />}
        {kind === 'time' && <TextField label="Time" type="datetime-local" value={text} onInput={change(setText)} required />}
      </Form>
      {preview !== null && (
        <div class="stack" role="status" data-testid="reset-preview">
          <DataTable label="What would move" columns={COLUMNS} rows={preview} rowKey={(move) => String(move.partition)} />
          {error !== '' && <p class="note note-bad" role="alert"><span>{error}</span></p>}
          <div class="actions">
            <button class="button button-danger" onClick={() => void apply()} data-testid="reset-apply">Move offsets</button>
          </div>
        </div>
      )}
    </Dialog>
  );
}
