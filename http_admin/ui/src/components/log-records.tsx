/** Reads records of a log from any offset or time. */

import { useState } from 'preact/hooks';
import { apiPath, get } from '../api/client';
import type { Log, LogRecord } from '../api/types';
import { count } from '../lib/format';
import { type RecordsStart, recordAsMessage, recordsQuery } from '../lib/logs';
import { Card } from './card';
import { Form, SelectField, TextField } from './forms';
import { MessageList } from './message-list';

const STARTS: readonly { id: RecordsStart; label: string }[] = [
  { id: 'first', label: 'First record' },
  { id: 'last', label: 'Last record' },
  { id: 'offset', label: 'Offset' },
  { id: 'time', label: 'Time' },
];

export function LogRecords({ log, first = 0 }: { log: Log; first?: number }) {
  const [partition, setPartition] = useState(String(first));
  const [start, setStart] = useState<RecordsStart>('first');
  const [text, setText] = useState('');
  const [records, setRecords] = useState<LogRecord[] | null>(null);
  const read = async (kind: RecordsStart, position: string): Promise<void> => {
    const response = await get<{ records: LogRecord[] }>(
      `${apiPath('logs', log.vhost, log.name, 'records')}?${recordsQuery(partition, kind, position)}`,
    );
    setRecords(response.records);
  };
  const last = records?.at(-1);
  const readOn = async (): Promise<void> => {
    if (last === undefined) return;
    const next = String(last.offset + 1);
    setStart('offset');
    setText(next);
    await read('offset', next);
  };
  const partitions = log.partitions.map((partition) => ({
    id: String(partition.index),
    label: `Partition ${partition.index}`,
  }));
  return (
    <Card title="Records" testid="records">
      <p class="muted card-lead">
        Read-only: records stay in the log, and the offsets of groups do not change.
      </p>
      <Form label="Read records" action="Read records" onSubmit={() => read(start, text)}>
        <SelectField
          label="Partition"
          value={partition}
          onInput={setPartition}
          options={partitions}
        />
        <SelectField
          label="Start at"
          value={start}
          onInput={(next) => setStart(next as RecordsStart)}
          options={STARTS}
        />
        {start === 'offset' && <TextField label="Offset" value={text} onInput={setText} required />}
        {start === 'time' && (
          <TextField label="Time" type="datetime-local" value={text} onInput={setText} required />
        )}
      </Form>
      {records?.length === 0 && (
        <p class="gap-top" role="status">
          No records after this offset.
        </p>
      )}
      {records !== null && last !== undefined && (
        <div class="gap-top stack">
          <MessageList
            messages={records.map((record) => recordAsMessage(record, Date.now()))}
            label="Records of the log"
          />
          <div class="actions">
            <button type="button" class="button button-small" onClick={() => void readOn()}>
              Continue from offset {count(last.offset + 1)}
            </button>
          </div>
        </div>
      )}
    </Card>
  );
}
