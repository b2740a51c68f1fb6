/** The messages of a queue: browse only reads them, get can remove or reject them. */

import { useEffect, useState } from 'preact/hooks';
import { ApiError, apiPath, get, post } from '../api/client';
import type { Message, Queue } from '../api/types';
import { wholeNumber } from '../lib/argument-values';
import { exchangeName, plural } from '../lib/format';
import { deadLetterExchange } from '../lib/messages';
import { Card } from './card';
import { confirmLoss } from './dialog';
import { Form, SelectField, TextField } from './forms';
import { MessageList } from './message-list';
import { ErrorNote, Loading, NotSupported } from './status-notes';

const PAGE_SIZE = 50;

export function BrowseMessages({ queue }: { queue: Queue }) {
  const [offset, setOffset] = useState(0);
  const [messages, setMessages] = useState<Message[] | null>(null);
  const [error, setError] = useState<unknown>(null);
  const load = async (at: number): Promise<void> => {
    setError(null);
    try {
      setMessages(
        await get<Message[]>(
          `${apiPath('queues', queue.vhost, queue.name, 'browse')}?count=${PAGE_SIZE}&offset=${at}`,
        ),
      );
      setOffset(at);
    } catch (problem) {
      setError(problem);
    }
  };
  useEffect(() => void load(0), []);
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
    <Card title="Browse" testid="browse" aside={buttons}>
      <p class="muted card-lead">
        Oldest first. Read-only: messages stay in the queue, in their order.
      </p>
      {error instanceof ApiError ? (
        <NotSupported feature="browsing" error={error} />
      ) : (
        error !== null && <ErrorNote error={error} />
      )}
      {messages === null && error === null && <Loading />}
      {messages?.length === 0 && (
        <p>{offset === 0 ? 'The queue is empty.' : 'No more messages.'}</p>
      )}
      {messages !== null && messages.length > 0 && (
        <MessageList messages={messages} label="Messages in the queue" />
      )}
    </Card>
  );
}

const MODES = [
  { id: 'ack_requeue_true', label: 'Requeue' },
  { id: 'ack_requeue_false', label: 'Remove permanently' },
  { id: 'reject_requeue_false', label: 'Reject: drop or dead-letter' },
] as const;

export function GetMessages({ queue }: { queue: Queue }) {
  const [mode, setMode] = useState<string>('ack_requeue_true');
  const [amount, setAmount] = useState('1');
  const [wait, setWait] = useState('');
  const [messages, setMessages] = useState<Message[] | null>(null);
  const submit = async (): Promise<void> => {
    const total = wholeNumber('Count', amount);
    if (mode !== 'ack_requeue_true' && !(await confirmRemoval(queue, mode, total))) return;
    const body = {
      count: total,
      ackmode: mode,
      encoding: 'auto',
      ...(wait === '' ? {} : { wait: wholeNumber('Wait', wait) }),
    };
    setMessages(await post<Message[]>(apiPath('queues', queue.vhost, queue.name, 'get'), body));
  };
  return (
    <Card title="Get" testid="get">
      <Form label="Get messages" action="Get messages" onSubmit={submit}>
        <TextField label="Count" type="number" value={amount} onInput={setAmount} required />
        <SelectField
          label="Afterwards"
          value={mode}
          onInput={setMode}
          options={MODES}
          help="Requeued messages are marked as redelivered."
        />
        <TextField
          label="Wait for a message"
          type="number"
          value={wait}
          onInput={setWait}
          unit="s"
          placeholder="do not wait"
          help="Maximum wait if the queue is empty."
        />
      </Form>
      {messages?.length === 0 && (
        <p class="gap-top" role="status">
          No message is ready.
        </p>
      )}
      {messages !== null && messages.length > 0 && (
        <div class="gap-top">
          <MessageList messages={messages} label="Messages from get" />
        </div>
      )}
    </Card>
  );
}

function confirmRemoval(queue: Queue, mode: string, total: number): Promise<boolean> {
  const deadLetters = mode === 'reject_requeue_false' ? deadLetterExchange(queue) : undefined;
  const fate =
    deadLetters === undefined
      ? 'removed permanently'
      : `sent to the dead-letter exchange ${exchangeName(deadLetters)}`;
  return confirmLoss({
    title: `Remove messages from ${queue.name}?`,
    loss: `Up to ${plural(total, 'message')} will be shown here and ${fate}. Consumers of this queue will not get them.`,
    action: 'Remove',
  });
}
