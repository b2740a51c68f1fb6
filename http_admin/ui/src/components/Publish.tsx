/** Publishes one message and says in words whether a queue took it. */

import { useState } from 'preact/hooks';
import { apiPath, exchangeSegment, post } from '../api/client';
import type { Table } from '../api/types';
import { readTable, wholeNumber, type TableRow } from '../lib/arguments';
import { AreaField, CheckField, Form, TableEditor, TextField } from './forms';

const PROPERTIES = ['content_type', 'message_id', 'correlation_id', 'reply_to', 'expiration', 'priority', 'type', 'app_id'] as const;
const NUMBERS = new Set<string>(['priority']);
const LABELS: Record<string, string> = {
  content_type: 'Content type', message_id: 'Message id', correlation_id: 'Correlation id', reply_to: 'Reply to',
  expiration: 'Expiration (ms)', priority: 'Priority', type: 'Type', app_id: 'Application id',
};

function readProperties(texts: Readonly<Record<string, string>>, persistent: boolean, headers: readonly TableRow[]): Table {
  const found: Table = { delivery_mode: persistent ? 2 : 1 };
  for (const key of PROPERTIES) {
    const text = (texts[key] ?? '').trim();
    if (text !== '') found[key] = NUMBERS.has(key) ? wholeNumber(LABELS[key] ?? key, text) : text;
  }
  const table = readTable(headers);
  if (Object.keys(table).length > 0) found['headers'] = table;
  return found;
}

export function Publish({ vhost, exchange, fixedKey }: { vhost: string; exchange: string; fixedKey?: string }) {
  const [key, setKey] = useState('');
  const [payload, setPayload] = useState('');
  const [persistent, setPersistent] = useState(true);
  const [texts, setTexts] = useState<Record<string, string>>({});
  const [headers, setHeaders] = useState<TableRow[]>([]);
  const [result, setResult] = useState<{ routed: boolean } | null>(null);
  const send = async (): Promise<void> => {
    setResult(null);
    const reply = await post<{ routed: boolean }>(apiPath('exchanges', vhost, exchangeSegment(exchange), 'publish'), {
      properties: readProperties(texts, persistent, headers),
      routing_key: fixedKey ?? key,
      payload,
      payload_encoding: 'string',
    });
    setResult(reply);
  };
  return (
    <Form label="Publish a message" action="Publish" testid="publish" onSubmit={send}>
      {fixedKey === undefined && <TextField label="Routing key" value={key} onInput={setKey} />}
      <CheckField label="Persistent" checked={persistent} onInput={setPersistent} help="Survives a restart in a durable queue." />
      <AreaField label="Body" value={payload} onInput={setPayload} rows={5} />
      <TableEditor label="Headers" rows={headers} onChange={setHeaders} />
      <details class="field-wide">
        <summary>More properties</summary>
        <div class="form-group">
          {PROPERTIES.map((name) => (
            <TextField key={name} label={LABELS[name] ?? name} value={texts[name] ?? ''} onInput={(text) => setTexts({ ...texts, [name]: text })} />
          ))}
        </div>
      </details>
      {result !== null && (
        <p class={result.routed ? 'note note-good' : 'note note-warn'} role="status" data-testid="publish-result">
          <span>{result.routed ? 'Published: at least one queue has it.' : 'Published, but no queue is bound for this key: the message is gone.'}</span>
        </p>
      )}
    </Form>
  );
}
