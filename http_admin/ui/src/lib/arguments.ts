/** What the declare and policy forms know about each argument, and reading typed values from text. */

import type { Table } from '../api/types';

export type ArgKind = 'number' | 'text' | 'flag' | 'choice';
export type QueueKind = 'classic' | 'quorum' | 'stream';

export interface ArgSpec {
  key: string;
  label: string;
  kind: ArgKind;
  group: 'Limits' | 'Dead lettering' | 'Delivery' | 'Deduplication' | 'Log';
  help: string;
  types: readonly QueueKind[];
  choices?: readonly string[];
  unit?: string;
  placeholder?: string;
}

const WORK: readonly QueueKind[] = ['classic', 'quorum'];
const ALL: readonly QueueKind[] = ['classic', 'quorum', 'stream'];
const LOG: readonly QueueKind[] = ['stream'];

export const QUEUE_ARGS: readonly ArgSpec[] = [
  { key: 'x-max-length', label: 'Most messages', kind: 'number', group: 'Limits', types: WORK,
    help: 'Ready messages kept at most. What happens beyond it is decided by “When full”.' },
  { key: 'x-max-length-bytes', label: 'Most bytes', kind: 'number', group: 'Limits', types: ALL, unit: 'bytes',
    help: 'Sum of message bodies kept at most. In a log, whole old segments are dropped beyond it.' },
  { key: 'x-overflow', label: 'When full', kind: 'choice', group: 'Limits', types: WORK,
    choices: ['drop-head', 'reject-publish', 'reject-publish-dlx'],
    help: 'drop-head removes the oldest; reject-publish refuses new ones; reject-publish-dlx also dead-letters them.' },
  { key: 'x-message-ttl', label: 'Message lifetime', kind: 'number', group: 'Limits', types: WORK, unit: 'ms',
    help: 'A message older than this is dropped, or dead-lettered where an exchange for that is set.' },
  { key: 'x-expires', label: 'Queue lifetime unused', kind: 'number', group: 'Limits', types: WORK, unit: 'ms',
    help: 'The queue itself is deleted after this long without consumers, gets or redeclaration.' },
  { key: 'x-dead-letter-exchange', label: 'Dead-letter exchange', kind: 'text', group: 'Dead lettering', types: WORK,
    help: 'Rejected, expired and dropped messages are published to this exchange instead of being lost.' },
  { key: 'x-dead-letter-routing-key', label: 'Dead-letter routing key', kind: 'text', group: 'Dead lettering', types: WORK,
    help: 'Key used for dead letters. Without it, each keeps its own routing key.' },
  { key: 'x-dead-letter-strategy', label: 'Dead-letter promise', kind: 'choice', group: 'Dead lettering', types: WORK,
    choices: ['at-most-once', 'at-least-once'],
    help: 'Accepted for RabbitMQ’s sake. Every move is one transaction here: no dead letter is lost or doubled, whatever is chosen.' },
  { key: 'x-delivery-limit', label: 'Delivery limit', kind: 'number', group: 'Dead lettering', types: ['quorum'],
    help: 'After this many returns to the queue a message is dropped or dead-lettered. −1 means never.' },
  { key: 'x-max-priority', label: 'Highest priority', kind: 'number', group: 'Delivery', types: ['classic'],
    help: 'Lets messages carry a priority from 0 to this value (255 at most); higher ones are delivered first.' },
  { key: 'x-single-active-consumer', label: 'Single active consumer', kind: 'flag', group: 'Delivery', types: WORK,
    help: 'Only one consumer at a time gets messages; the next takes over when it leaves.' },
  { key: 'x-consumer-timeout', label: 'Acknowledge within', kind: 'number', group: 'Delivery', types: WORK, unit: 'ms',
    help: 'A consumer that holds a message unacknowledged longer than this loses its channel.' },
  { key: 'x-message-deduplication', label: 'Drop repetitions', kind: 'flag', group: 'Deduplication', types: WORK,
    help: 'A message whose header x-deduplication-header was seen before is confirmed and dropped.' },
  { key: 'x-cache-size', label: 'Keys remembered', kind: 'number', group: 'Deduplication', types: WORK, placeholder: '10000',
    help: 'So many of the newest header values are remembered, over restarts, too.' },
  { key: 'x-cache-ttl', label: 'Remembered for', kind: 'number', group: 'Deduplication', types: WORK, unit: 'ms',
    help: 'A value older than this is forgotten. A message’s own header x-cache-ttl comes first.' },
  { key: 'x-max-age', label: 'Oldest kept', kind: 'text', group: 'Log', types: LOG, placeholder: '7D',
    help: 'Whole segments older than this are dropped: a number and one of Y M D h m s, such as 7D or 12h.' },
  { key: 'x-stream-max-segment-size-bytes', label: 'Segment size', kind: 'number', group: 'Log', types: LOG, unit: 'bytes',
    help: 'A new segment file is begun at this size; retention drops whole segments.' },
  { key: 'x-partitions', label: 'Partitions', kind: 'number', group: 'Log', types: LOG,
    help: 'Splits the log so that a group of consumers can share it; order is kept per key.' },
  { key: 'x-cleanup-policy', label: 'Clean-up', kind: 'choice', group: 'Log', types: LOG, choices: ['delete', 'compact'],
    help: 'delete drops old segments; compact keeps the newest record of every key.' },
];

export const QUEUE_TYPES: Record<QueueKind, string> = {
  classic: 'Each message goes to one consumer and is removed when acknowledged.',
  quorum: 'Work queue that counts deliveries and can give up on a message after a limit.',
  stream: 'Records stay after reading; every reader has its own place and can replay.',
};

export function argsFor(kind: QueueKind): ArgSpec[] {
  return QUEUE_ARGS.filter((spec) => spec.types.includes(kind));
}

/**
 * Text of the form's fields to typed arguments; a wrong one is refused with a sentence. The type is
 * named unless it is classic in a virtual host where queues are so by default.
 */
export function readArgs(kind: QueueKind, texts: Readonly<Record<string, string>>, byDefault = 'classic'): Table {
  const isUnnamed = kind === 'classic' && byDefault === 'classic';
  return { ...(isUnnamed ? {} : { 'x-queue-type': kind }), ...readFields(argsFor(kind), texts) };
}

/** Fields left empty are not set. */
export function readFields(specs: readonly Pick<ArgSpec, 'key' | 'label' | 'kind'>[], texts: Readonly<Record<string, string>>): Table {
  const args: Table = {};
  for (const spec of specs) {
    const text = (texts[spec.key] ?? '').trim();
    if (text === '') continue;
    if (spec.kind === 'number') args[spec.key] = wholeNumber(spec.label, text);
    else if (spec.kind === 'flag') args[spec.key] = text === 'true';
    else args[spec.key] = text;
  }
  return args;
}

export function wholeNumber(label: string, text: string): number {
  if (!/^-?\d+$/.test(text)) throw new Error(`“${label}” must be a whole number, not “${text}”.`);
  return Number(text);
}

export type ValueKind = 'string' | 'number' | 'boolean' | 'json';

export function readValue(kind: ValueKind, text: string): unknown {
  switch (kind) {
    case 'string':
      return text;
    case 'boolean':
      return text.trim() === 'true';
    case 'number': {
      const number = Number(text);
      if (text.trim() === '' || !Number.isFinite(number)) throw new Error(`“${text}” is not a number.`);
      return number;
    }
    case 'json':
      try {
        return JSON.parse(text) as unknown;
      } catch {
        throw new Error(`“${text}” is not valid JSON.`);
      }
  }
}

export interface TableRow {
  key: string;
  kind: ValueKind;
  text: string;
}

export function readTable(rows: readonly TableRow[]): Table {
  const table: Table = {};
  for (const row of rows) if (row.key.trim() !== '') table[row.key.trim()] = readValue(row.kind, row.text);
  return table;
}

const NOT_BY_POLICY = new Set([
  'x-single-active-consumer', 'x-max-priority', 'x-partitions', 'x-message-deduplication', 'x-cache-size', 'x-cache-ttl',
]);

/** The keys a policy may set, with the same explanations. */
export const POLICY_KEYS: readonly { key: string; kind: ValueKind; help: string }[] = [
  ...QUEUE_ARGS.filter((spec) => !NOT_BY_POLICY.has(spec.key))
    .map((spec) => ({
      key: spec.key.replace(/^x-/, ''),
      kind: (spec.kind === 'number' ? 'number' : spec.kind === 'flag' ? 'boolean' : 'string') as ValueKind,
      help: spec.help,
    })),
  { key: 'alternate-exchange', kind: 'string', help: 'Exchange that gets messages this one can route nowhere.' },
  { key: 'history', kind: 'string', help: 'What the message history keeps of these queues: full, metadata or off.' },
];
