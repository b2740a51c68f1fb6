/** The messages that a delayed exchange holds, in the order in which they are due. */

import { useEffect, useState } from 'preact/hooks';
import { apiPath, get, remove } from '../api/client';
import type { Exchange, ScheduledMessage } from '../api/types';
import { bytes, count, dateTime, duration } from '../lib/format';
import { Card } from './card';
import { confirmLoss } from './dialog';
import { MessageBody, MessageProperties } from './message-list';
import { ErrorNote, Loading } from './status-notes';
import { attempt } from './toasts';

const PAGE_SIZE = 50;

async function deleteMessage(
  exchange: Exchange,
  message: ScheduledMessage,
  onDone: () => void,
): Promise<void> {
  const confirmed = await confirmLoss({
    title: `Delete scheduled message ${message.id}?`,
    loss: `It is due at ${dateTime(message.due_ms)}. It will be dropped and never delivered.`,
    action: 'Delete message',
  });
  if (!confirmed) return;
  const path = apiPath('exchanges', exchange.vhost, exchange.name, 'scheduled', String(message.id));
  if (await attempt(() => remove(path), `Message ${message.id} deleted.`)) onDone();
}

function ScheduledItem({ message, onDelete }: { message: ScheduledMessage; onDelete: () => void }) {
  return (
    <li>
      <details class="message" data-testid="scheduled-message">
        <summary>
          <span class="num nowrap">{dateTime(message.due_ms)}</span>
          <span class="message-key">{message.routing_key || '(no routing key)'}</span>
          <span class="message-peek">
            {message.payload_encoding === 'base64' ? '(binary)' : message.payload.slice(0, 160)}
          </span>
          <span class="num muted nowrap">{bytes(message.payload_bytes)}</span>
          <span class="num muted nowrap">in {duration(message.due_ms - Date.now())}</span>
        </summary>
        <div class="message-body stack">
          <MessageProperties properties={message.properties} />
          <MessageBody
            payload={message.payload}
            encoding={message.payload_encoding}
            size={message.payload_bytes}
          />
          <div class="actions">
            <button type="button" class="button button-small button-danger" onClick={onDelete}>
              Delete this message
            </button>
          </div>
        </div>
      </details>
    </li>
  );
}

export function ScheduledMessages({ exchange }: { exchange: Exchange }) {
  const [offset, setOffset] = useState(0);
  const [messages, setMessages] = useState<ScheduledMessage[] | null>(null);
  const [error, setError] = useState<unknown>(null);
  const load = async (at: number): Promise<void> => {
    setError(null);
    try {
      setMessages(
        await get<ScheduledMessage[]>(
          `${apiPath('exchanges', exchange.vhost, exchange.name, 'scheduled')}?count=${PAGE_SIZE}&offset=${at}`,
        ),
      );
      setOffset(at);
    } catch (problem) {
      setError(problem);
    }
  };
  // The number of scheduled messages is live; the list is read again when it changes.
  useEffect(() => void load(offset), [exchange.messages_delayed]);
  const buttons = (
    <div class="actions">
      <button type="button" class="button button-small" onClick={() => void load(offset)}>
        Refresh
      </button>
      {offset > 0 && (
        <button
          type="button"
          class="button button-small"
          onClick={() => void load(Math.max(0, offset - PAGE_SIZE))}
        >
          Earlier
        </button>
      )}
      {messages?.length === PAGE_SIZE && (
        <button
          type="button"
          class="button button-small"
          onClick={() => void load(offset + PAGE_SIZE)}
        >
          Later
        </button>
      )}
    </div>
  );
  return (
    <Card title="Scheduled" testid="scheduled" aside={buttons}>
      <p class="muted card-lead">
        {count(exchange.messages_delayed ?? 0)} scheduled, earliest first. Each message is routed by
        the bindings that exist when it is due.
      </p>
      {error !== null && <ErrorNote error={error} />}
      {messages === null && error === null && <Loading />}
      {messages?.length === 0 && (
        <p>{offset === 0 ? 'No scheduled messages.' : 'No more messages.'}</p>
      )}
      {messages !== null && messages.length > 0 && (
        <ol class="messages" aria-label="Scheduled messages">
          {messages.map((message) => (
            <ScheduledItem
              key={message.id}
              message={message}
              onDelete={() => void deleteMessage(exchange, message, () => void load(offset))}
            />
          ))}
        </ol>
      )}
    </Card>
  );
}
