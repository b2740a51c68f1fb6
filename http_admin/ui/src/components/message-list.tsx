/** A list of messages; each one opens to show its properties and body. */

import type { Message, MessageProperties as Properties } from '../api/types';
import { bytes, duration, exchangeName, value } from '../lib/format';
import { bodyOf } from '../lib/messages';
import { href } from '../lib/route';
import { Badge } from './badge';
import { KeyValueList } from './key-value-list';

export function MessageBody({
  payload,
  encoding,
  size,
}: {
  payload: string;
  encoding: string;
  size: number;
}) {
  const body = bodyOf(payload, encoding);
  if (body.kind === 'empty') return <p class="muted">The body is empty.</p>;
  return (
    <figure class="body-view" aria-label="Message body">
      <p class="muted">
        {body.kind}, {bytes(size)}
      </p>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: an element that scrolls must be reachable by keyboard. */}
      <pre tabIndex={0}>{body.text}</pre>
    </figure>
  );
}

export function MessageProperties({ properties }: { properties: Properties }) {
  const { headers, ...others } = properties;
  const items = [
    ...Object.entries(others),
    ...Object.entries(headers ?? {}).map(([key, of]) => [`header ${key}`, of] as const),
  ];
  if (items.length === 0) return <p class="muted">No properties.</p>;
  return (
    <KeyValueList items={items.map(([key, of]) => [key, <code>{value(of)}</code>] as const)} />
  );
}

function traceLink(message: Message): string | null {
  if (message.id !== undefined) return href(['history'], { id: message.id });
  const messageId = message.properties.message_id;
  return messageId === undefined ? null : href(['history'], { message_id: messageId });
}

function MessageItem({ message, index }: { message: Message; index: number }) {
  const link = traceLink(message);
  return (
    <li>
      <details class="message" data-testid="message">
        <summary>
          <span class="num muted">{message.position ?? index + 1}</span>
          <span class="message-key">{message.routing_key || '(no routing key)'}</span>
          <span class="message-peek">
            {message.payload_encoding === 'base64' ? '(binary)' : message.payload.slice(0, 160)}
          </span>
          {message.state === 'unacked' && (
            <Badge tone="warn" title="Delivered to a consumer, not acknowledged yet">
              unacked
            </Badge>
          )}
          {message.redelivered && <Badge tone="info">redelivered</Badge>}
          <span class="num muted nowrap">{bytes(message.payload_bytes)}</span>
          {message.age_ms !== undefined && (
            <span class="num muted nowrap">{duration(message.age_ms)}</span>
          )}
        </summary>
        <div class="message-body stack">
          <KeyValueList
            items={[
              ['Exchange', exchangeName(message.exchange)],
              ['Routing key', message.routing_key],
              ['Internal ID', message.id],
              ['History', link && <a href={link}>Trace this message</a>],
            ]}
          />
          <MessageProperties properties={message.properties} />
          <MessageBody
            payload={message.payload}
            encoding={message.payload_encoding}
            size={message.payload_bytes}
          />
        </div>
      </details>
    </li>
  );
}

export function MessageList({ messages, label }: { messages: readonly Message[]; label: string }) {
  return (
    <ol class="messages" aria-label={label} data-testid="messages">
      {messages.map((message, index) => (
        <MessageItem key={message.id ?? index} message={message} index={index} />
      ))}
    </ol>
  );
}
