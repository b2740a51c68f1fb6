import { describe, expect, it } from 'vitest';
import { errorMessage } from '../src/api/client';
import type { Group, Log, Partition, TraceEvent } from '../src/api/types';
import { readTable, readValue } from '../src/lib/argument-values';
import { exchangeArguments, readExchangeArguments } from '../src/lib/exchange-arguments';
import {
  bytes,
  compact,
  count,
  dateTime,
  duration,
  percent,
  plural,
  rate,
  value,
} from '../src/lib/format';
import {
  commitText,
  isConnection,
  laneSegments,
  logWithPartition,
  lossText,
  lostText,
  recordAsMessage,
  recordsQuery,
  resetTarget,
  retentionText,
  scaleOf,
  waitingMembers,
} from '../src/lib/logs';
import { bodyOf, deadLetterExchange, hexDump } from '../src/lib/messages';
import { argumentsFor, readArguments } from '../src/lib/queue-arguments';
import { href, parseRoute } from '../src/lib/route';
import { columns, levels, rangeOf, rates, SHORT_RANGES, sparkPoints } from '../src/lib/series';
import { amqpUrl, consumeSnippet, publishSnippet } from '../src/lib/snippets';
import { matching, sorted, toggled } from '../src/lib/sort';
import { queueVisits, timedEvents } from '../src/lib/trace';

describe('error messages', () => {
  it('name the missing object', () => {
    const missing = (path: string): string => errorMessage(404, { reason: 'Not Found' }, path);
    expect(missing('/api/queues/shop/a%2Fb?lengths_age=60')).toBe(
      'Queue “a/b” does not exist in “shop”.',
    );
    expect(missing('/api/users/ann')).toBe('User “ann” does not exist.');
    expect(missing('/api/route/shop')).toBe('This does not exist.');
  });
  it('repeat the reason of the server', () => {
    expect(errorMessage(400, { reason: 'no name given' }, '/api/queues')).toBe('No name given');
    expect(errorMessage(401, { reason: 'not a monitor' }, '/api/nodes')).toBe(
      'Not allowed: not a monitor',
    );
    expect(errorMessage(503, undefined, '/api/nodes')).toBe('The broker cannot do this right now.');
  });
});

describe('format', () => {
  it('groups thousands and shows a dash for the unknown', () => {
    expect(count(1234567)).toBe('1,234,567');
    expect(count(undefined)).toBe('–');
    expect(count(Number.NaN)).toBe('–');
  });
  it('shortens large numbers', () => {
    expect([999, 1234, 2_500_000, 7e9].map(compact)).toEqual(['999', '1.2k', '2.5M', '7G']);
  });
  it('keeps one digit for slow rates only', () => {
    expect(rate(0.25)).toBe('0.3/s');
    expect(rate(1234.6)).toBe('1,235/s');
  });
  it('writes sizes in binary units', () => {
    expect(bytes(1023)).toBe('1,023 B');
    expect(bytes(1536)).toBe('1.5 KiB');
    expect(bytes(3 * 1024 ** 3)).toBe('3 GiB');
  });
  it('writes durations in at most two units', () => {
    expect(duration(350)).toBe('350 ms');
    expect(duration(1234)).toBe('1.2 s');
    expect(duration(184_000)).toBe('3 min 4 s');
    expect(duration(7_200_000)).toBe('2 h');
    expect(duration(90_000_000)).toBe('1 d 1 h');
  });
  it('writes times, counts and shares', () => {
    expect(dateTime(new Date(2026, 0, 2, 3, 4, 5).getTime())).toBe('2026-01-02 03:04:05');
    expect(plural(1, 'message')).toBe('1 message');
    expect(plural(2, 'entry', 'entries')).toBe('2 entries');
    expect(percent(1, 8)).toBe('12.5 %');
    expect(percent(1, 0)).toBe('–');
    expect(value({ a: 1 })).toBe('{"a":1}');
  });
});

describe('routes', () => {
  it('survives names with slashes, spaces, percent signs and markup', () => {
    for (const name of ['a/b', '50%', 'a b?c=d#e', '<img src=x>', '']) {
      expect(parseRoute(href(['queues', '/', name], { tab: 'x&y' }))).toEqual({
        path: ['queues', '/', name],
        query: { tab: 'x&y' },
      });
    }
  });
  it('reads an empty hash as no path and keeps broken escapes', () => {
    expect(parseRoute('')).toEqual({ path: [], query: {} });
    expect(parseRoute('#/queues/%zz').path).toEqual(['queues', '%zz']);
  });
  it('leaves out empty query values', () => {
    expect(href(['queues'], { name: '', page: 2, desc: false, sort: undefined })).toBe(
      '#/queues?page=2',
    );
  });
});

describe('sorting', () => {
  const rows = [
    { n: 'q10', m: 1 },
    { n: 'q2', m: null },
    { n: 'q1', m: 7 },
  ];
  it('sorts names naturally and numbers by value, the missing last', () => {
    expect(sorted(rows, { by: 'n', descending: false }).map((row) => row.n)).toEqual([
      'q1',
      'q2',
      'q10',
    ]);
    expect(sorted(rows, { by: 'm', descending: true }).map((row) => row.m)).toEqual([7, 1, null]);
    expect(sorted(rows, { by: 'm', descending: false }).map((row) => row.m)).toEqual([1, 7, null]);
  });
  it('reads dotted paths', () => {
    const nested = [{ s: { r: 1 } }, { s: { r: 5 } }, {}];
    expect(sorted(nested, { by: 's.r', descending: true })[0]).toEqual({ s: { r: 5 } });
  });
  it('filters by any field, ignoring case', () => {
    expect(matching(rows, ['n'], 'Q1').map((row) => row.n)).toEqual(['q10', 'q1']);
  });
  it('sorts numeric columns descending first', () => {
    expect(toggled({ by: 'n', descending: false }, 'm', true)).toEqual({
      by: 'm',
      descending: true,
    });
    expect(toggled({ by: 'm', descending: true }, 'm', true)).toEqual({
      by: 'm',
      descending: false,
    });
  });
});

describe('series', () => {
  it('falls back to the longest range available', () => {
    expect(rangeOf('8h').id).toBe('8h');
    expect(rangeOf('8h', SHORT_RANGES).id).toBe('10m');
    expect(rangeOf('1m', SHORT_RANGES).id).toBe('1m');
    expect(rangeOf('odd', SHORT_RANGES).id).toBe('1m');
  });
  const samples = [
    { timestamp: 10_000, sample: 30 },
    { timestamp: 5_000, sample: 10 },
    { timestamp: 0, sample: 20 },
  ];
  it('turns a counter into rates that are never negative', () => {
    expect([...rates({ rate: 0, samples })]).toEqual([
      [5_000, 0],
      [10_000, 4],
    ]);
  });
  it('joins series on time', () => {
    expect(columns([levels({ rate: 0, samples }), new Map([[5_000, 1]])])).toEqual([
      [0, 5, 10],
      [20, 10, 30],
      [null, 1, null],
    ]);
  });
  it('draws a sparkline inside its box', () => {
    expect(sparkPoints([1], 10, 10)).toBe('');
    expect(sparkPoints([0, 2], 10, 10)).toBe('0,9 10,1');
  });
});

describe('arguments', () => {
  it('offers only the arguments of a queue type', () => {
    expect(argumentsFor('stream').map((spec) => spec.key)).not.toContain('x-message-ttl');
    expect(argumentsFor('classic').map((spec) => spec.key)).not.toContain('x-max-age');
  });
  it('reads typed values and ignores arguments of another type', () => {
    expect(
      readArguments('classic', { 'x-max-length': '10', 'x-max-age': '7D', 'x-overflow': '' }),
    ).toEqual({ 'x-max-length': 10 });
    expect(readArguments('stream', { 'x-max-age': '7D' })).toEqual({
      'x-queue-type': 'stream',
      'x-max-age': '7D',
    });
  });
  it('sends the classic type if the virtual host has another default', () => {
    expect(readArguments('classic', {}, 'quorum')).toEqual({ 'x-queue-type': 'classic' });
    expect(readArguments('classic', {}, 'classic')).toEqual({});
  });
  it('refuses values of the wrong type', () => {
    expect(() => readArguments('classic', { 'x-max-length': 'many' })).toThrow(
      'must be a whole number',
    );
    expect(() => readValue('json', '{')).toThrow('not valid JSON');
  });
  it('reads only the arguments of an exchange type', () => {
    const texts = { 'x-delayed-type': 'topic', 'x-cache-size': '5' };
    expect(readExchangeArguments('x-delayed-message', texts)).toEqual({
      'x-delayed-type': 'topic',
    });
    expect(readExchangeArguments('x-message-deduplication', texts)).toEqual({ 'x-cache-size': 5 });
    expect(exchangeArguments('direct')).toEqual([]);
  });
  it('builds tables from rows and skips those without a name', () => {
    expect(
      readTable([
        { key: 'a', kind: 'number', text: '1' },
        { key: ' ', kind: 'string', text: 'x' },
      ]),
    ).toEqual({ a: 1 });
  });
});

describe('messages', () => {
  it('distinguishes JSON, text, binary and empty bodies', () => {
    expect(bodyOf('{"a":1}', 'string')).toEqual({ text: '{\n  "a": 1\n}', kind: 'JSON' });
    expect(bodyOf('{oops', 'string').kind).toBe('text');
    expect(bodyOf('AAEC', 'base64').kind).toBe('binary');
    expect(bodyOf('', 'string').kind).toBe('empty');
  });
  it('dumps bytes in hexadecimal and as text', () => {
    expect(hexDump(new Uint8Array([72, 105, 0]))).toMatch(/^000000 {2}48 69 00 +Hi·$/);
  });
});

describe('trace', () => {
  const at = (time_ms: number, event: string, queue: string | null = 'q'): TraceEvent => ({
    time_ms,
    event,
    queue,
    message: 1,
    consumer: null,
    connection: null,
    user: null,
    redelivered: false,
    detail: null,
  });
  it('sorts events and measures the time between them', () => {
    const events = timedEvents([at(30, 'acked'), at(10, 'published')]);
    expect(events.map((one) => [one.event, one.sincePrevious, one.sinceFirst, one.tone])).toEqual([
      ['published', 0, 0, 'plain'],
      ['acked', 20, 20, 'good'],
    ]);
  });
  it('measures per queue how long a message waited and was with consumers', () => {
    const events = [
      at(0, 'published', null),
      at(1, 'enqueued'),
      at(5, 'delivered'),
      at(9, 'requeued'),
      at(10, 'redelivered'),
      at(25, 'acked'),
      at(2, 'enqueued', 'r'),
    ];
    expect(queueVisits(events)).toEqual([
      { queue: 'q', waited: 4, withConsumers: 20, deliveries: 2, end: 'acked' },
      { queue: 'r', waited: null, withConsumers: null, deliveries: 0, end: null },
    ]);
  });
});

describe('snippets', () => {
  const overview = {
    listeners: [{ node: 'n', protocol: 'amqp', ip_address: '::', port: 5673, socket_opts: [] }],
  };
  it('uses the port of the listener, the user and the vhost', () => {
    expect(amqpUrl(overview, 'guest', '/', 'broker')).toBe('amqp://guest:guest@broker:5673/%2F');
    expect(amqpUrl(undefined, 'ann', 'a b', 'h')).toBe('amqp://ann:PASSWORD@h:5672/a%20b');
  });
  it('quotes queue names for Python', () => {
    expect(publishSnippet('amqp://x', 'a"b')).toContain('queue_declare("a\\"b", durable=True)');
  });
  it('reads a log from its first record', () => {
    expect(consumeSnippet('amqp://x', 'q')).toContain('basic_consume("q", on_message)');
    expect(consumeSnippet('amqp://x', 'q', true)).toContain(
      'basic_consume("q", on_message, arguments={"x-stream-offset": "first"})',
    );
  });
});

describe('dead-letter exchange', () => {
  it('comes from the argument, or else from the policy', () => {
    const policy = { 'dead-letter-exchange': 'by-policy' };
    expect(deadLetterExchange({ arguments: {}, effective_policy_definition: {} })).toBeUndefined();
    expect(deadLetterExchange({ arguments: {}, effective_policy_definition: policy })).toBe(
      'by-policy',
    );
    expect(
      deadLetterExchange({
        arguments: { 'x-dead-letter-exchange': '' },
        effective_policy_definition: policy,
      }),
    ).toBe('');
  });
});

describe('logs', () => {
  const segment = (base_offset: number) => ({
    base_offset,
    next_offset: base_offset + 10,
    bytes: 4,
    sealed: true,
  });
  const partition: Partition = {
    index: 0,
    queue: 'l-0',
    first_offset: 10,
    next_offset: 30,
    messages: 20,
    bytes: 9,
    segments: [segment(10), segment(20)],
    damage: [],
    lost: 0,
    skipped: 0,
    cut_bytes: 0,
    duplicates: 0,
    gaps: 0,
  };
  it('names lost records', () => {
    const damage = {
      segment: 0,
      position: 0,
      length: 0,
      first_offset: 5,
      reason: 'missing segment',
    };
    const damaged = [
      {
        ...partition,
        damage: [
          { ...damage, next_offset: 8 },
          { ...damage, next_offset: null },
        ],
      },
    ];
    expect(lostText(damaged)).toEqual([
      'partition 0, offsets from 5 to 7 (missing segment)',
      'partition 0, offsets from 5 on (missing segment)',
    ]);
  });
  const log: Log = {
    name: 'l',
    vhost: '/',
    partitioned: true,
    partitions: [partition, { ...partition, index: 1, queue: 'l-1' }],
    messages: 25,
    bytes: 18,
    consumers: 0,
    groups: ['g'],
    arguments: {},
    cleanup_policy: 'delete',
    max_age: null,
    max_age_ms: null,
    max_length_bytes: null,
    retention: { max_age: null, max_length_bytes: null },
  };
  it('draws the segments of all partitions on one scale', () => {
    const scale = scaleOf([partition, { ...partition, first_offset: 0, next_offset: 40 }]);
    expect(laneSegments(partition, scale).map((one) => [one.left, one.width])).toEqual([
      [0.25, 0.25],
      [0.5, 0.25],
    ]);
  });
  it('says what is lost with a log', () => {
    expect(lossText(log)).toBe(
      'The log, its bindings, 25 records, 2 partitions and the offsets of 1 group will be lost',
    );
    const plain = { ...log, partitioned: false, messages: 5, groups: [] };
    expect(lossText(plain)).toBe('The log, its bindings and 5 records will be lost');
  });
  it('finds the log of a partition', () => {
    const plain = { ...log, partitioned: false };
    expect(logWithPartition([plain, log], 'l-1')).toBe(log);
    expect(logWithPartition([plain, log], 'l')).toBeUndefined();
  });
  it('says how long records are kept', () => {
    expect(retentionText(log)).toBe('keeps records forever');
    expect(retentionText({ ...log, max_age_ms: 604_800_000, max_length_bytes: 2048 })).toBe(
      'keeps records for 7 d, at most 2 KiB',
    );
  });
  it('reads reset targets', () => {
    expect(resetTarget('first', '')).toBe('first');
    expect(resetTarget('offset', '42')).toBe(42);
    expect(resetTarget('time', '2026-01-02T03:04:05Z')).toBe('2026-01-02T03:04:05.000Z');
    expect(() => resetTarget('offset', '-1')).toThrow('whole number');
  });
  it('builds the query for records and shows them as messages', () => {
    expect(recordsQuery('2', 'offset', '7')).toBe('partition=2&offset=7&count=50');
    expect(recordsQuery('0', 'first', '')).toBe('partition=0&offset=first&count=50');
    const record = {
      partition: 0,
      offset: 3,
      timestamp: 1_000,
      exchange: 'log',
      key: 'k',
      value: 'ä',
      encoding: 'string',
      headers: { a: 1 },
      properties: {},
    };
    expect(recordAsMessage(record, 4_000)).toMatchObject({
      position: 3,
      exchange: 'log',
      routing_key: 'k',
      payload_bytes: 2,
      age_ms: 3_000,
      properties: { headers: { a: 1 } },
    });
    expect(recordAsMessage({ ...record, value: 'AAE=', encoding: 'base64' }, 0)).toMatchObject({
      payload_bytes: 2,
      age_ms: 0,
    });
  });
  it('says when a group commits and which members have no partition', () => {
    const member = { consumer_tag: 'c', connection: '1 -> 2', partitions: [0], unacknowledged: 0 };
    const waiting = { ...member, connection: 'HTTP API (d)', partitions: [] };
    const group: Group = {
      group: 'g',
      members: [member, waiting],
      partitions: [],
      commit: 'ack',
      commit_interval_ms: null,
      lag: 0,
    };
    expect(commitText(group)).toBe('commits on ack');
    expect(commitText({ ...group, commit: 'delivery' })).toBe('commits before delivery');
    expect(commitText({ ...group, commit: 'interval', commit_interval_ms: 5_000 })).toBe(
      'commits every 5 s',
    );
    expect(waitingMembers(group)).toEqual([waiting]);
    expect([member, waiting].map(isConnection)).toEqual([true, false]);
  });
});
