/** Looking into a log: records from any place on, which stay where they are. */

import { useState } from 'preact/hooks';
import { apiPath, get } from '../api/client';
import type { Log, LogRecord } from '../api/types';
import { count } from '../lib/format';
import { recordsQuery, shownRecord, type RecordsStart } from '../lib/logs';
import { Card } from './basics';
import { Form, SelectField, TextField } from './forms';
import { MessageList } from './MessageList';

const STARTS: readonly { id: RecordsStart; label: string }[] = [
  { id: 'first', label: 'the oldest record' },
  { id: 'last', label: 'the last record' },
  { id: 'offset', label: 'an offset' },
  { id: 'time', label: 'a time' },
];

export function Records({ log, first = 0 }: { log: Log; first?: number }) {
  const [partition, setPartition] = useState(String(first));
  const [start, setStart] = useState<RecordsStart>('first');
  const [text, setText] = useState('');
  const [found, setFound] = useState<LogRecord[] | null>(null);
  const read = async (kind: RecordsStart, where: string): Promise<void> => {
    const answer = await get<{ records: LogRecord[] }>(`${apiPath('logs', log.vhost, log.name, 'records')}?${recordsQuery(partition, kind, where)}`);
    setFound(answer.records);
  };
  const last = found?.at(-1);
  const later = async (): Promise<void> => {
    if (last === undefined) return;
    const next = String(last.offset + 1);
    setStart('offset');
    setText(next);
    await read('offset', next);
  };
  const partitions = log.partitions.map((one) => ({ id: String(one.index), label: `partition ${one.index}` }));
  return (
    <Card title="Records" testid="records">
      <p class="muted card-lead">Reading takes nothing away and moves no group.</p>
      <Form label="Read records" action="Read records" onSubmit={() => read(start, text)}>
        <SelectField label="Of" value={partition} onInput={setPartition} options={partitions} />
        <SelectField label="From" value={start} onInput={(next) => setStart(next as RecordsStart)} options={STARTS} />
        {start === 'offset' && <TextField label="Offset" value={text} onInput={setText} required />}
        {start === 'time' && <TextField label="Time" type="datetime-local" value={text} onInput={setText} required />}
      </Form>
      {found?.length === 0 && <p class="gap-top" role="status">There is nothing from there on.</p>}
      {found !== null && last !== undefined && (
        <div class="gap-top stack">
          <MessageList messages={found.map((one) => shownRecord(one, Date.now()))} label="Records of the log" />
          <div class="actions">
            <button class="button button-small" onClick={() => void later()}>Read on from {count(last.offset + 1)}</button>
          </div>
        </div>
      )}
    </Card>
  );
}
