/** The exchange types, and the arguments that the form for exchanges offers. */

import type { Table } from '../api/types';
import { type ArgumentSpec, readFields } from './argument-values';

export const EXCHANGE_TYPE_HELP: Record<string, string> = {
  direct: 'Routes to queues bound with exactly the message’s routing key.',
  topic: 'Matches routing keys word by word: * is one word, # is any number of words.',
  fanout: 'Routes to every bound queue and ignores the routing key.',
  headers: 'Matches message headers against the binding’s arguments.',
  'x-delayed-message':
    'Delays each message by the milliseconds in its x-delay header, then routes it like the type below.',
  'x-consistent-hash':
    'Distributes routing keys over the bound queues; the binding key is the weight.',
  'x-modulus-hash': 'Distributes routing keys evenly over the bound queues.',
  'x-random': 'Routes to one bound queue, chosen at random.',
  'x-local-random': 'Routes to one bound queue, chosen at random.',
  'x-recent-history': 'A fanout that sends the last messages to every newly bound queue.',
  'x-message-deduplication':
    'A fanout that drops a message whose x-deduplication-header was seen before.',
};

const DEDUPLICATION_ARGUMENTS: readonly ArgumentSpec[] = [
  {
    key: 'x-cache-size',
    label: 'Cache size',
    kind: 'number',
    placeholder: '10000',
    help: 'How many of the newest header values are remembered. A message with one of them is confirmed and dropped.',
  },
  {
    key: 'x-cache-ttl',
    label: 'Cache TTL',
    kind: 'number',
    unit: 'ms',
    help: 'How long a value is remembered. A message can override it with its own x-cache-ttl header.',
  },
];

const ARGUMENTS_BY_TYPE: Record<string, readonly ArgumentSpec[]> = {
  'x-delayed-message': [
    {
      key: 'x-delayed-type',
      label: 'Routes like',
      kind: 'choice',
      choices: ['direct', 'topic', 'fanout', 'headers'],
      help: 'How messages are routed after their delay. Required.',
    },
  ],
  'x-consistent-hash': [
    {
      key: 'hash-header',
      label: 'Hash a header',
      kind: 'text',
      help: 'Name of the header to hash instead of the routing key.',
    },
    {
      key: 'hash-property',
      label: 'Hash a property',
      kind: 'choice',
      choices: ['message_id', 'correlation_id', 'timestamp'],
      help: 'The property to hash instead of the routing key.',
    },
  ],
  'x-recent-history': [
    {
      key: 'x-recent-history-length',
      label: 'Messages kept',
      kind: 'number',
      placeholder: '20',
      help: 'How many of the last messages go to each new binding.',
    },
  ],
  'x-message-deduplication': DEDUPLICATION_ARGUMENTS,
};

export function exchangeArguments(type: string): readonly ArgumentSpec[] {
  return ARGUMENTS_BY_TYPE[type] ?? [];
}

export function readExchangeArguments(
  type: string,
  texts: Readonly<Record<string, string>>,
): Table {
  return readFields(exchangeArguments(type), texts);
}
