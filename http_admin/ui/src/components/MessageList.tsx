/** Messages as a list that opens one by one: bodies are text, pretty where they are JSON. */

import type { Message, Table } from '../api/types';
import { bytes, duration, exchangeName, value } from '../lib/format';
import { bodyOf, propertiesOf } from '../lib/messages';
import { href } from '../lib/route';
import { Badge, Facts } from './basics';

export function BodyView({ payload, encoding, size }: { payload: string; encoding: string; size: number }) {
  const body = bodyOf(payload, encoding);
  if (body.kind === 'empty') return <p class="muted">The body is empty.</p>;
  return (
    <div class="body-view">
      <p class="muted">{body.kind}, {bytes(size)}</p>
      <pre tabIndex={0} aria-label="Message body">{body.text}</pre>
    </div>
  );
}

export function PropertyFacts({ properties }: { properties: Table }) {
  const { headers, ...plain } = properties;
  const items = [
    ...Object.entries(plain),
    ...Object.entries((headers ?? {}) as Table).map(([key, of]) => [`header ${key}`, of] as const),
  ];
  if (items.length === 0) return <p class="muted">No properties.</p>;
  return <Facts items={items.map(([key, of]) => [key, <code>{value(of)}</code>] as const)} />;
}

function traceLink(message: Message): string | null {
  const given = propertiesOf(message)['message_id'];
  if (message.id !== undefined) return href(['history'], { id: message.id });
  return typeof given === 'string' ? href(['history'], { message_id: given }) : null;
}

function OneMessage({ message, index }: { message: Message; index: number }) {
  const link = traceLink(message);
  return (
    <li>
      <details class="message" data-testid="message">
        <summary>
          <span class="num muted">{message.position ?? index + 1}</span>
          <span class="message-key">{message.routing_key || '(no key)'}</span>
          <span class="message-peek">{message.payload_encoding === 'base64' ? '(binary)' : message.payload.slice(0, 160)}</span>
          {message.state === 'unacked' && <Badge tone="warn" title="With a consumer, not acknowledged yet">unacked</Badge>}
          {message.redelivered && <Badge tone="info">redelivered</Badge>}
          <span class="num muted nowrap">{bytes(message.payload_bytes)}</span>
          {message.age_ms !== undefined && <span class="num muted nowrap">{duration(message.age_ms)}</span>}
        </summary>
        <div class="message-body stack">
          <Facts items={[
            ['Exchange', exchangeName(message.exchange)],
            ['Routing key', message.routing_key],
            ['Internal id', message.id],
            ['History', link && <a href={link}>Trace this message</a>],
          ]} />
          <PropertyFacts properties={propertiesOf(message)} />
          <BodyView payload={message.payload} encoding={message.payload_encoding} size={message.payload_bytes} />
        </div>
      </details>
    </li>
  );
}

export function MessageList({ messages, label }: { messages: readonly Message[]; label: string }) {
  return (
    <ol class="messages" aria-label={label} data-testid="messages">
      {messages.map((message, index) => <OneMessage key={message.id ?? index} message={message} index={index} />)}
    </ol>
  );
}
