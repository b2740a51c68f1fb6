/** Resets the committed offsets of a group, after a preview of every change. */

import { useState } from 'preact/hooks';
import { apiPath, errorText, post } from '../api/client';
import type { Group, OffsetMove } from '../api/types';
import { count, plural } from '../lib/format';
import { type ResetKind, resetTarget } from '../lib/logs';
import { type Column, DataTable } from './data-table';
import { Dialog } from './dialog';
import { Form, SelectField, TextField } from './forms';
import { toast } from './toasts';

const TARGETS: readonly { id: ResetKind; label: string }[] = [
  { id: 'first', label: 'First record (read all again)' },
  { id: 'last', label: 'Last record' },
  { id: 'next', label: 'End (new records only)' },
  { id: 'offset', label: 'Offset' },
  { id: 'time', label: 'Time' },
];

function effectText(move: OffsetMove): string {
  if (move.from === null) return 'starts there';
  const gap = move.to - move.from;
  if (gap === 0) return 'unchanged';
  return gap < 0 ? `reads ${plural(-gap, 'record')} again` : `skips ${plural(gap, 'record')}`;
}

const COLUMNS: readonly Column<OffsetMove>[] = [
  { id: 'partition', title: 'Partition', render: (move) => move.partition },
  { id: 'from', title: 'From', numeric: true, render: (move) => count(move.from) },
  { id: 'to', title: 'To', numeric: true, render: (move) => count(move.to) },
  { id: 'effect', title: 'Effect', render: effectText },
];

interface ResetOffsetsProps {
  vhost: string;
  log: string;
  group: Group;
  onClose: () => void;
  onDone: () => void;
}

export function ResetOffsetsDialog({ vhost, log, group, onClose, onDone }: ResetOffsetsProps) {
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
  const change =
    <T,>(set: (next: T) => void) =>
    (next: T): void => {
      set(next);
      setPreview(null);
    };
  const apply = async (): Promise<void> => {
    try {
      await send(false);
      toast(`Offsets of ${group.group} reset.`);
      onDone();
      onClose();
    } catch (problem) {
      setError(errorText(problem));
    }
  };
  const options = [
    { id: '', label: 'All partitions' },
    ...group.partitions.map((item) => ({
      id: String(item.partition),
      label: `Partition ${item.partition}`,
    })),
  ];
  return (
    <Dialog title={`Reset offsets of ${group.group}`} onClose={onClose} testid="offset-reset">
      <Form
        label="Reset offsets"
        action="Preview"
        onSubmit={async () => setPreview(await send(true))}
        onCancel={onClose}
      >
        <SelectField
          wide
          label="Reset to"
          value={kind}
          onInput={change((next: string) => setKind(next as ResetKind))}
          options={TARGETS}
        />
        <SelectField
          label="Partitions"
          value={partition}
          onInput={change(setPartition)}
          options={options}
        />
        {kind === 'offset' && (
          <TextField label="Offset" value={text} onInput={change(setText)} required />
        )}
        {kind === 'time' && (
          <TextField
            label="Time"
            type="datetime-local"
            value={text}
            onInput={change(setText)}
            required
          />
        )}
      </Form>
      {preview !== null && (
        <div class="stack" role="status" data-testid="reset-preview">
          <DataTable
            label="Preview"
            columns={COLUMNS}
            rows={preview}
            rowKey={(move) => String(move.partition)}
          />
          {error !== '' && (
            <p class="note note-bad" role="alert">
              <span>{error}</span>
            </p>
          )}
          <div class="actions">
            <button
              type="button"
              class="button button-danger"
              onClick={() => void apply()}
              data-testid="reset-apply"
            >
              Reset offsets
            </button>
          </div>
        </div>
      )}
    </Dialog>
  );
}
