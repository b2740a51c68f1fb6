/** Publishes one message and shows whether it was routed to a queue. */

import { useState } from 'preact/hooks';
import { apiPath, exchangeSegment, post } from '../api/client';
import type { PublishResult, Table } from '../api/types';
import { readTable, type TableRow, wholeNumber } from '../lib/argument-values';
import { AreaField, CheckField, Form, TableEditor, TextField } from './forms';

const PROPERTIES = [
  'content_type',
  'message_id',
  'correlation_id',
  'reply_to',
  'expiration',
  'priority',
  'type',
  'app_id',
] as const;
const NUMERIC = new Set<string>(['priority']);
const LABELS: Record<string, string> = {
  content_type: 'Content type',
  message_id: 'Message ID',
  correlation_id: 'Correlation ID',
  reply_to: 'Reply to',
  expiration: 'Expiration (ms)',
  priority: 'Priority',
  type: 'Type',
  app_id: 'Application ID',
};

function readProperties(
  texts: Readonly<Record<string, string>>,
  persistent: boolean,
  headers: readonly TableRow[],
): Table {
  const properties: Table = { delivery_mode: persistent ? 2 : 1 };
  for (const key of PROPERTIES) {
    const text = (texts[key] ?? '').trim();
    if (text !== '')
      properties[key] = NUMERIC.has(key) ? wholeNumber(LABELS[key] ?? key, text) : text;
  }
  const table = readTable(headers);
  if (Object.keys(table).length > 0) properties.headers = table;
  return properties;
}

export function PublishForm({
  vhost,
  exchange,
  fixedKey,
}: {
  vhost: string;
  exchange: string;
  fixedKey?: string;
}) {
  const [key, setKey] = useState('');
  const [payload, setPayload] = useState('');
  const [persistent, setPersistent] = useState(true);
  const [texts, setTexts] = useState<Record<string, string>>({});
  const [headers, setHeaders] = useState<TableRow[]>([]);
  const [result, setResult] = useState<PublishResult | null>(null);
  const send = async (): Promise<void> => {
    setResult(null);
    const reply = await post<PublishResult>(
      apiPath('exchanges', vhost, exchangeSegment(exchange), 'publish'),
      {
        properties: readProperties(texts, persistent, headers),
        routing_key: fixedKey ?? key,
        payload,
        payload_encoding: 'string',
      },
    );
    setResult(reply);
  };
  return (
    <Form label="Publish a message" action="Publish" testid="publish" onSubmit={send}>
      {fixedKey === undefined && <TextField label="Routing key" value={key} onInput={setKey} />}
      <CheckField
        label="Persistent"
        checked={persistent}
        onInput={setPersistent}
        help="Survives a restart of the broker if the queue is durable."
      />
      <AreaField label="Body" value={payload} onInput={setPayload} rows={5} />
      <TableEditor label="Headers" rows={headers} onChange={setHeaders} />
      <details class="field-wide">
        <summary>More properties</summary>
        <div class="form-group">
          {PROPERTIES.map((name) => (
            <TextField
              key={name}
              label={LABELS[name] ?? name}
              value={texts[name] ?? ''}
              onInput={(text) => setTexts({ ...texts, [name]: text })}
            />
          ))}
        </div>
      </details>
      {result !== null && (
        <p
          class={result.routed ? 'note note-good' : 'note note-warn'}
          role="status"
          data-testid="publish-result"
        >
          <span>
            {result.routed
              ? 'Published and routed to at least one queue.'
              : 'Published, but no binding matches: the message was dropped.'}
          </span>
        </p>
      )}
    </Form>
  );
}
