/** Looking into a queue: browse leaves everything as it is, get does what its mode says. */

import { useEffect, useState } from 'preact/hooks';
import { ApiError, apiPath, get, post } from '../api/client';
import type { Message, Queue } from '../api/types';
import { exchangeName, plural } from '../lib/format';
import { wholeNumber } from '../lib/arguments';
import { deadLetterExchange } from '../lib/messages';
import { Card } from './basics';
import { confirmLoss, ErrorNote, Loading, Unavailable } from './feedback';
import { Form, SelectField, TextField } from './forms';
import { MessageList } from './MessageList';

const PAGE = 50;

export function Browse({ queue }: { queue: Queue }) {
  const [offset, setOffset] = useState(0);
  const [messages, setMessages] = useState<Message[] | null>(null);
  const [error, setError] = useState<unknown>(null);
  const load = async (at: number): Promise<void> => {
    setError(null);
    try {
      setMessages(await get<Message[]>(`${apiPath('queues', queue.vhost, queue.name, 'browse')}?count=${PAGE}&offset=${at}`));
      setOffset(at);
    } catch (problem) {
      setError(problem);
    }
  };
  useEffect(() => void load(0), []);
  const buttons = (
    <div class="actions">
      <button class="button button-small" onClick={() => void load(offset)}>Refresh</button>
      {offset > 0 && <button class="button button-small" onClick={() => void load(Math.max(0, offset - PAGE))}>Earlier</button>}
      {messages?.length === PAGE && <button class="button button-small" onClick={() => void load(offset + PAGE)}>Later</button>}
    </div>
  );
  return (
    <Card title="Browse" testid="browse" aside={buttons}>
      <p class="muted card-lead">Oldest first. Looking changes nothing: the messages stay where they are, in their order.</p>
      {error instanceof ApiError ? <Unavailable what="browsing" error={error} /> : error !== null && <ErrorNote error={error} />}
      {messages === null && error === null && <Loading />}
      {messages?.length === 0 && <p>{offset === 0 ? 'The queue is empty.' : 'No more messages.'}</p>}
      {messages !== null && messages.length > 0 && <MessageList messages={messages} label="Messages in the queue" />}
    </Card>
  );
}

const MODES = [
  { id: 'ack_requeue_true', label: 'Put back' },
  { id: 'ack_requeue_false', label: 'Take out for good' },
  { id: 'reject_requeue_false', label: 'Reject: drop or dead-letter' },
] as const;

export function GetMessages({ queue }: { queue: Queue }) {
  const [mode, setMode] = useState<string>('ack_requeue_true');
  const [amount, setAmount] = useState('1');
  const [wait, setWait] = useState('');
  const [messages, setMessages] = useState<Message[] | null>(null);
  const submit = async (): Promise<void> => {
    const total = wholeNumber('How many', amount);
    if (mode !== 'ack_requeue_true' && !(await sure(queue, mode, total))) return;
    const body = { count: total, ackmode: mode, encoding: 'auto', ...(wait === '' ? {} : { wait: wholeNumber('Wait', wait) }) };
    setMessages(await post<Message[]>(apiPath('queues', queue.vhost, queue.name, 'get'), body));
  };
  return (
    <Card title="Get" testid="get">
      <Form label="Get messages" action="Get messages" onSubmit={submit}>
        <TextField label="How many" type="number" value={amount} onInput={setAmount} required />
        <SelectField label="Then" value={mode} onInput={setMode} options={MODES} help="What is put back counts as redelivered." />
        <TextField label="Wait for one" type="number" value={wait} onInput={setWait} unit="s" placeholder="no" help="Waits this long when the queue is empty." />
      </Form>
      {messages?.length === 0 && <p class="gap-top" role="status">No message was ready.</p>}
      {messages !== null && messages.length > 0 && <div class="gap-top"><MessageList messages={messages} label="Messages taken" /></div>}
    </Card>
  );
}

function sure(queue: Queue, mode: string, total: number): Promise<boolean> {
  const dead = mode === 'reject_requeue_false' ? deadLetterExchange(queue) : undefined;
  const away = dead === undefined ? 'leave the queue for good' : `go to the dead-letter exchange ${exchangeName(dead)}`;
  return confirmLoss({
    title: `Take messages out of ${queue.name}?`,
    loss: `Up to ${plural(total, 'message')} will be shown here and ${away}. No consumer will get them.`,
    action: 'Take them out',
  });
}
