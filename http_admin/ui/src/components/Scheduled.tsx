/** What waits at a delayed exchange, soonest first; one can be taken off the schedule. */

import { useEffect, useState } from 'preact/hooks';
import { apiPath, get, remove } from '../api/client';
import type { Exchange, Scheduled } from '../api/types';
import { bytes, count, dateTime, duration } from '../lib/format';
import { Card } from './basics';
import { attempt, confirmLoss, ErrorNote, Loading } from './feedback';
import { BodyView, PropertyFacts } from './MessageList';

const PAGE = 50;

async function cancel(exchange: Exchange, one: Scheduled, after: () => void): Promise<void> {
  const yes = await confirmLoss({
    title: `Cancel message ${one.id}?`,
    loss: `It would have gone on at ${dateTime(one.due_ms)}. It will be dropped and never delivered.`,
    action: 'Cancel message',
  });
  if (!yes) return;
  const where = apiPath('exchanges', exchange.vhost, exchange.name, 'scheduled', String(one.id));
  if (await attempt(() => remove(where), `Message ${one.id} is cancelled.`)) after();
}

function OneScheduled({ one, onCancel }: { one: Scheduled; onCancel: () => void }) {
  return (
    <li>
      <details class="message" data-testid="scheduled-message">
        <summary>
          <span class="num nowrap">{dateTime(one.due_ms)}</span>
          <span class="message-key">{one.routing_key || '(no key)'}</span>
          <span class="message-peek">{one.payload_encoding === 'base64' ? '(binary)' : one.payload.slice(0, 160)}</span>
          <span class="num muted nowrap">{bytes(one.payload_bytes)}</span>
          <span class="num muted nowrap">in {duration(one.due_ms - Date.now())}</span>
        </summary>
        <div class="message-body stack">
          <PropertyFacts properties={one.properties} />
          <BodyView payload={one.payload} encoding={one.payload_encoding} size={one.payload_bytes} />
          <div class="actions">
            <button class="button button-small button-danger" onClick={onCancel}>Cancel this message</button>
          </div>
        </div>
      </details>
    </li>
  );
}

export function Schedule({ exchange }: { exchange: Exchange }) {
  const [offset, setOffset] = useState(0);
  const [found, setFound] = useState<Scheduled[] | null>(null);
  const [error, setError] = useState<unknown>(null);
  const load = async (at: number): Promise<void> => {
    setError(null);
    try {
      setFound(await get<Scheduled[]>(`${apiPath('exchanges', exchange.vhost, exchange.name, 'scheduled')}?count=${PAGE}&offset=${at}`));
      setOffset(at);
    } catch (problem) {
      setError(problem);
    }
  };
  // The number of messages that wait is live: read again when it changes.
  useEffect(() => void load(offset), [exchange.messages_delayed]);
  const buttons = (
    <div class="actions">
      <button class="button button-small" onClick={() => void load(offset)}>Refresh</button>
      {offset > 0 && <button class="button button-small" onClick={() => void load(Math.max(0, offset - PAGE))}>Sooner</button>}
      {found?.length === PAGE && <button class="button button-small" onClick={() => void load(offset + PAGE)}>Later</button>}
    </div>
  );
  return (
    <Card title="Scheduled" testid="scheduled" aside={buttons}>
      <p class="muted card-lead">{count(exchange.messages_delayed ?? 0)} waiting, soonest first. Each is routed by the bindings of the moment it is due.</p>
      {error !== null && <ErrorNote error={error} />}
      {found === null && error === null && <Loading />}
      {found?.length === 0 && <p>{offset === 0 ? 'Nothing waits here.' : 'No more messages.'}</p>}
      {found !== null && found.length > 0 && (
        <ol class="messages" aria-label="Messages that wait">
          {found.map((one) => <OneScheduled key={one.id} one={one} onCancel={() => void cancel(exchange, one, () => void load(offset))} />)}
        </ol>
      )}
    </Card>
  );
}
