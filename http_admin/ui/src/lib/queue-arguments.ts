/** The queue types, and the arguments that the forms for queues and policies offer. */

import type { Table } from '../api/types';
import { type ArgumentSpec, readFields, type ValueKind } from './argument-values';

export type QueueKind = 'classic' | 'quorum' | 'stream';

/** A queue of type stream is called a log here. */
export const QUEUE_KINDS: readonly { id: QueueKind; label: string; help: string }[] = [
  {
    id: 'classic',
    label: 'Classic',
    help: 'Each message goes to one consumer and is removed when it is acknowledged.',
  },
  {
    id: 'quorum',
    label: 'Quorum',
    help: 'Like a classic queue, but it counts deliveries and can drop a message after a limit.',
  },
  {
    id: 'stream',
    label: 'Log',
    help: 'Records stay after they are read; every consumer has its own offset and can replay.',
  },
];

export const ARGUMENT_GROUPS = [
  'Log',
  'Limits',
  'Dead lettering',
  'Delivery',
  'Deduplication',
] as const;

export interface QueueArgument extends ArgumentSpec {
  group: (typeof ARGUMENT_GROUPS)[number];
  types: readonly QueueKind[];
}

const ALL: readonly QueueKind[] = ['classic', 'quorum', 'stream'];
const CLASSIC_AND_QUORUM: readonly QueueKind[] = ['classic', 'quorum'];
const LOG: readonly QueueKind[] = ['stream'];

export const QUEUE_ARGUMENTS: readonly QueueArgument[] = [
  {
    key: 'x-max-length',
    label: 'Max messages',
    kind: 'number',
    group: 'Limits',
    types: CLASSIC_AND_QUORUM,
    help: 'Maximum number of ready messages. “When full” sets what happens above it.',
  },
  {
    key: 'x-max-length-bytes',
    label: 'Max bytes',
    kind: 'number',
    group: 'Limits',
    types: ALL,
    unit: 'bytes',
    help: 'Maximum size of all message bodies together. A log deletes its oldest segments above it.',
  },
  {
    key: 'x-overflow',
    label: 'When full',
    kind: 'choice',
    group: 'Limits',
    types: CLASSIC_AND_QUORUM,
    choices: ['drop-head', 'reject-publish', 'reject-publish-dlx'],
    help: 'drop-head removes the oldest message; reject-publish refuses new ones; reject-publish-dlx refuses and dead-letters them.',
  },
  {
    key: 'x-message-ttl',
    label: 'Message TTL',
    kind: 'number',
    group: 'Limits',
    types: CLASSIC_AND_QUORUM,
    unit: 'ms',
    help: 'Older messages are dropped, or dead-lettered if a dead-letter exchange is set.',
  },
  {
    key: 'x-expires',
    label: 'Auto-expire',
    kind: 'number',
    group: 'Limits',
    types: CLASSIC_AND_QUORUM,
    unit: 'ms',
    help: 'Deletes the queue after this time without consumers, gets or redeclarations.',
  },
  {
    key: 'x-dead-letter-exchange',
    label: 'Dead-letter exchange',
    kind: 'text',
    group: 'Dead lettering',
    types: CLASSIC_AND_QUORUM,
    help: 'Rejected, expired and dropped messages are published to this exchange.',
  },
  {
    key: 'x-dead-letter-routing-key',
    label: 'Dead-letter routing key',
    kind: 'text',
    group: 'Dead lettering',
    types: CLASSIC_AND_QUORUM,
    help: 'Routing key of dead letters. If not set, each message keeps its own.',
  },
  {
    key: 'x-dead-letter-strategy',
    label: 'Dead-letter strategy',
    kind: 'choice',
    group: 'Dead lettering',
    types: CLASSIC_AND_QUORUM,
    choices: ['at-most-once', 'at-least-once'],
    help: 'Accepted for compatibility with RabbitMQ. Leveret moves a dead letter in one transaction, so it is never lost or duplicated.',
  },
  {
    key: 'x-delivery-limit',
    label: 'Delivery limit',
    kind: 'number',
    group: 'Dead lettering',
    types: ['quorum'],
    help: 'A message that is returned to the queue more often is dropped or dead-lettered. −1 means no limit.',
  },
  {
    key: 'x-max-priority',
    label: 'Max priority',
    kind: 'number',
    group: 'Delivery',
    types: ['classic'],
    help: 'Messages can have a priority from 0 to this value (at most 255); higher ones are delivered first.',
  },
  {
    key: 'x-single-active-consumer',
    label: 'Single active consumer',
    kind: 'flag',
    group: 'Delivery',
    types: CLASSIC_AND_QUORUM,
    help: 'Only one consumer at a time gets messages; when it leaves, the next one takes over.',
  },
  {
    key: 'x-consumer-timeout',
    label: 'Consumer timeout',
    kind: 'number',
    group: 'Delivery',
    types: CLASSIC_AND_QUORUM,
    unit: 'ms',
    help: 'The channel of a consumer is closed if it does not acknowledge a message within this time.',
  },
  {
    key: 'x-message-deduplication',
    label: 'Deduplicate',
    kind: 'flag',
    group: 'Deduplication',
    types: CLASSIC_AND_QUORUM,
    help: 'A message whose x-deduplication-header was seen before is confirmed and dropped.',
  },
  {
    key: 'x-cache-size',
    label: 'Cache size',
    kind: 'number',
    group: 'Deduplication',
    types: CLASSIC_AND_QUORUM,
    placeholder: '10000',
    help: 'How many of the newest header values are remembered. They survive a restart.',
  },
  {
    key: 'x-cache-ttl',
    label: 'Cache TTL',
    kind: 'number',
    group: 'Deduplication',
    types: CLASSIC_AND_QUORUM,
    unit: 'ms',
    help: 'How long a value is remembered. A message can override it with its own x-cache-ttl header.',
  },
  {
    key: 'x-max-age',
    label: 'Max age',
    kind: 'text',
    group: 'Log',
    types: LOG,
    placeholder: '7D',
    help: 'Segments older than this are deleted. A number and a unit (Y, M, D, h, m or s), such as 7D or 12h.',
  },
  {
    key: 'x-stream-max-segment-size-bytes',
    label: 'Segment size',
    kind: 'number',
    group: 'Log',
    types: LOG,
    unit: 'bytes',
    help: 'Size at which a new segment file starts. Retention deletes whole segments.',
  },
  {
    key: 'x-partitions',
    label: 'Partitions',
    kind: 'number',
    group: 'Log',
    types: LOG,
    help: 'Splits the log so that a group of consumers can share it. Order is kept per key.',
  },
  {
    key: 'x-cleanup-policy',
    label: 'Cleanup policy',
    kind: 'choice',
    group: 'Log',
    types: LOG,
    choices: ['delete', 'compact'],
    help: 'delete removes old segments; compact keeps the newest record of every key.',
  },
];

export function argumentsFor(kind: QueueKind): QueueArgument[] {
  return QUEUE_ARGUMENTS.filter((spec) => spec.types.includes(kind));
}

/**
 * The arguments of a declaration. The type is left out only for a classic queue in a virtual host
 * whose default type is classic.
 */
export function readArguments(
  kind: QueueKind,
  texts: Readonly<Record<string, string>>,
  defaultType = 'classic',
): Table {
  const isDefault = kind === 'classic' && defaultType === 'classic';
  return {
    ...(isDefault ? {} : { 'x-queue-type': kind }),
    ...readFields(argumentsFor(kind), texts),
  };
}

const NOT_IN_POLICIES = new Set([
  'x-single-active-consumer',
  'x-max-priority',
  'x-partitions',
  'x-message-deduplication',
  'x-cache-size',
  'x-cache-ttl',
]);

const VALUE_KINDS = {
  number: 'number',
  flag: 'boolean',
  text: 'string',
  choice: 'string',
} as const;

/** The keys a policy may set. */
export const POLICY_KEYS: readonly { key: string; kind: ValueKind; help: string }[] = [
  ...QUEUE_ARGUMENTS.filter((spec) => !NOT_IN_POLICIES.has(spec.key)).map((spec) => ({
    key: spec.key.replace(/^x-/, ''),
    kind: VALUE_KINDS[spec.kind],
    help: spec.help,
  })),
  {
    key: 'alternate-exchange',
    kind: 'string',
    help: 'Exchange that gets the messages this exchange cannot route.',
  },
  {
    key: 'history',
    kind: 'string',
    help: 'How much the message history keeps of these queues: full, metadata or off.',
  },
];
