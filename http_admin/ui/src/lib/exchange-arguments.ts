/** What the declare form knows about each type of exchange and its arguments. */

import type { Table } from '../api/types';
import { readFields, type ArgSpec } from './arguments';

export const EXCHANGE_TYPE_HELP: Record<string, string> = {
  direct: 'Sends to queues bound with exactly the message’s routing key.',
  topic: 'Matches keys word by word: * is one word, # any number.',
  fanout: 'Sends to every bound queue, whatever the key.',
  headers: 'Matches message headers against the binding’s arguments.',
  'x-delayed-message': 'Holds each message for the milliseconds of its header x-delay, then routes it like the type below.',
  'x-consistent-hash': 'Spreads keys over the bound queues; the binding key is the weight.',
  'x-modulus-hash': 'Spreads keys evenly over the bound queues.',
  'x-random': 'Sends to one bound queue, picked at random.',
  'x-local-random': 'Sends to one bound queue, picked at random.',
  'x-recent-history': 'A fanout that gives newly bound queues the last messages first.',
  'x-message-deduplication': 'A fanout that lets each value of the header x-deduplication-header pass once.',
};

type ExchangeArg = Omit<ArgSpec, 'group' | 'types'>;

const CACHE: readonly ExchangeArg[] = [
  { key: 'x-cache-size', label: 'Keys remembered', kind: 'number', placeholder: '10000',
    help: 'So many of the newest keys are remembered; a message with one of them is confirmed and dropped.' },
  { key: 'x-cache-ttl', label: 'Remembered for', kind: 'number', unit: 'ms',
    help: 'A key older than this is forgotten. A message’s own header x-cache-ttl comes first.' },
];

const BY_TYPE: Record<string, readonly ExchangeArg[]> = {
  'x-delayed-message': [
    { key: 'x-delayed-type', label: 'Routes like', kind: 'choice', choices: ['direct', 'topic', 'fanout', 'headers'],
      help: 'How messages are routed once their delay is over. Required.' },
  ],
  'x-consistent-hash': [
    { key: 'hash-header', label: 'Hash a header', kind: 'text', help: 'Name of the header that decides, instead of the routing key.' },
    { key: 'hash-property', label: 'Hash a property', kind: 'choice', choices: ['message_id', 'correlation_id', 'timestamp'],
      help: 'The property that decides, instead of the routing key.' },
  ],
  'x-recent-history': [
    { key: 'x-recent-history-length', label: 'Messages remembered', kind: 'number', placeholder: '20',
      help: 'So many of the last messages go to each new binding.' },
  ],
  'x-message-deduplication': CACHE,
};

export function exchangeArgs(type: string): readonly ExchangeArg[] {
  return BY_TYPE[type] ?? [];
}

export function readExchangeArgs(type: string, texts: Readonly<Record<string, string>>): Table {
  return readFields(exchangeArgs(type), texts);
}
