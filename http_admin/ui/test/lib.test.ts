import { describe, expect, it } from 'vitest';
import { bytes, compact, count, dateTime, duration, percent, plural, rate, value } from '../src/lib/format';
import { href, parseRoute } from '../src/lib/route';
import { matching, sorted, toggled } from '../src/lib/sort';
import { columns, levels, rangeOf, rates, SHORT_RANGES, sparkPoints } from '../src/lib/series';
import { argsFor, readArgs, readTable, readValue } from '../src/lib/arguments';
import { exchangeArgs, readExchangeArgs } from '../src/lib/exchange-arguments';
import { asPage } from '../src/lib/paging';
import { commitWords, isConnection, laneSegments, logWithPartition, lossWords, recordsQuery, resetTarget, retentionWords, scaleOf, shownRecord, waitingMembers } from '../src/lib/logs';
import { bodyOf, deadLetterExchange, hexDump, legs, moments } from '../src/lib/messages';
import { amqpUrl, consumeSnippet, publishSnippet } from '../src/lib/snippets';

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
    expect(href(['queues'], { name: '', page: 2, desc: false, sort: undefined })).toBe('#/queues?page=2');
  });
});

describe('sorting', () => {
  const rows = [{ n: 'q10', m: 1 }, { n: 'q2', m: null }, { n: 'q1', m: 7 }];
  it('sorts names naturally and numbers by value, the missing last', () => {
    expect(sorted(rows, { by: 'n', descending: false }).map((row) => row.n)).toEqual(['q1', 'q2', 'q10']);
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
  it('starts numeric columns at the largest', () => {
    expect(toggled({ by: 'n', descending: false }, 'm', true)).toEqual({ by: 'm', descending: true });
    expect(toggled({ by: 'm', descending: true }, 'm', true)).toEqual({ by: 'm', descending: false });
  });
});

describe('series', () => {
  it('falls back to the longest range there is', () => {
    expect(rangeOf('8h').id).toBe('8h');
    expect(rangeOf('8h', SHORT_RANGES).id).toBe('10m');
    expect(rangeOf('1m', SHORT_RANGES).id).toBe('1m');
    expect(rangeOf('odd', SHORT_RANGES).id).toBe('1m');
  });
  const samples = [{ timestamp: 10_000, sample: 30 }, { timestamp: 5_000, sample: 10 }, { timestamp: 0, sample: 20 }];
  it('turns a counter into rates and never below zero', () => {
    expect([...rates({ rate: 0, samples })]).toEqual([[5_000, 0], [10_000, 4]]);
  });
  it('joins series on time', () => {
    expect(columns([levels({ samples }), new Map([[5_000, 1]])])).toEqual([[0, 5, 10], [20, 10, 30], [null, 1, null]]);
  });
  it('draws a sparkline inside its box', () => {
    expect(sparkPoints([1], 10, 10)).toBe('');
    expect(sparkPoints([0, 2], 10, 10)).toBe('0,9 10,1');
  });
});

describe('arguments', () => {
  it('offers each type its own arguments only', () => {
    expect(argsFor('stream').map((spec) => spec.key)).not.toContain('x-message-ttl');
    expect(argsFor('classic').map((spec) => spec.key)).not.toContain('x-max-age');
  });
  it('reads typed values and ignores arguments of another type', () => {
    expect(readArgs('classic', { 'x-max-length': '10', 'x-max-age': '7D', 'x-overflow': '' })).toEqual({ 'x-max-length': 10 });
    expect(readArgs('stream', { 'x-max-age': '7D' })).toEqual({ 'x-queue-type': 'stream', 'x-max-age': '7D' });
  });
  it('names the classic type where the virtual host has another by default', () => {
    expect(readArgs('classic', {}, 'quorum')).toEqual({ 'x-queue-type': 'classic' });
    expect(readArgs('classic', {}, 'classic')).toEqual({});
  });
  it('refuses what is not a number in words', () => {
    expect(() => readArgs('classic', { 'x-max-length': 'many' })).toThrow('must be a whole number');
    expect(() => readValue('json', '{')).toThrow('not valid JSON');
  });
  it('reads the arguments that belong to a type of exchange', () => {
    const texts = { 'x-delayed-type': 'topic', 'x-cache-size': '5' };
    expect(readExchangeArgs('x-delayed-message', texts)).toEqual({ 'x-delayed-type': 'topic' });
    expect(readExchangeArgs('x-message-deduplication', texts)).toEqual({ 'x-cache-size': 5 });
    expect(exchangeArgs('direct')).toEqual([]);
  });
  it('builds tables from rows and skips nameless ones', () => {
    expect(readTable([{ key: 'a', kind: 'number', text: '1' }, { key: ' ', kind: 'string', text: 'x' }])).toEqual({ a: 1 });
  });
});

describe('messages', () => {
  it('tells JSON, text, binary and empty bodies apart', () => {
    expect(bodyOf('{"a":1}', 'string')).toEqual({ text: '{\n  "a": 1\n}', kind: 'JSON' });
    expect(bodyOf('{oops', 'string').kind).toBe('text');
    expect(bodyOf('AAEC', 'base64').kind).toBe('binary');
    expect(bodyOf('', 'string').kind).toBe('empty');
  });
  it('dumps bytes with their letters', () => {
    expect(hexDump(new Uint8Array([72, 105, 0]))).toMatch(/^000000 {2}48 69 00 +Hi·$/);
  });
  it('orders events and measures the gaps', () => {
    const found = moments([{ time_ms: 30, event: 'acked' }, { time_ms: 10, event: 'published' }]);
    expect(found.map((at) => [at.event, at.gap, at.since, at.tone])).toEqual([['published', 0, 0, 'plain'], ['acked', 20, 20, 'good']]);
  });
});

describe('legs of a message', () => {
  const at = (time_ms: number, event: string, queue: string | null = 'q') => ({ time_ms, event, queue });
  it('measures waiting and holding per queue and says how it ended', () => {
    const story = [at(0, 'published', null), at(1, 'enqueued'), at(5, 'delivered'), at(9, 'requeued'), at(10, 'redelivered'), at(25, 'acked'), at(2, 'enqueued', 'r')];
    expect(legs(story)).toEqual([
      { queue: 'q', waited: 4, held: 20, deliveries: 2, end: 'acked' },
      { queue: 'r', waited: null, held: null, deliveries: 0, end: null },
    ]);
  });
});

describe('snippets', () => {
  const overview = { cluster_name: 'c', node: 'n', listeners: [{ node: 'n', protocol: 'amqp', ip_address: '::', port: 5673 }] };
  it('names the real port, user and vhost', () => {
    expect(amqpUrl(overview, 'guest', '/', 'broker')).toBe('amqp://guest:guest@broker:5673/%2F');
    expect(amqpUrl(undefined, 'ann', 'a b', 'h')).toBe('amqp://ann:PASSWORD@h:5672/a%20b');
  });
  it('quotes queue names for Python', () => {
    expect(publishSnippet('amqp://x', 'a"b')).toContain('queue_declare("a\\"b", durable=True)');
  });
  it('reads a log from its first record', () => {
    expect(consumeSnippet('amqp://x', 'q')).toContain('basic_consume("q", on_message)');
    expect(consumeSnippet('amqp://x', 'q', true)).toContain('basic_consume("q", on_message, arguments={"x-stream-offset": "first"})');
  });
});

describe('paging', () => {
  const wanted = { filter: 'q', sorting: { by: 'name', descending: true }, page: 2, pageSize: 2 };
  const rows = ['q1', 'q2', 'x', 'q3'].map((name) => ({ name }));
  it('pages a whole list as the server would', () => {
    const page = asPage(rows, wanted);
    expect(page?.items).toEqual([{ name: 'q1' }]);
    expect([page?.page, page?.page_count, page?.filtered_count, page?.total_count]).toEqual([2, 2, 3, 4]);
  });
  it('stays on the last page there is', () => {
    expect(asPage(rows, { ...wanted, page: 9 })?.page).toBe(2);
  });
});

describe('dead letters', () => {
  it('go where the argument says, or else the policy', () => {
    const policy = { 'dead-letter-exchange': 'by-policy' };
    expect(deadLetterExchange({ arguments: {} })).toBeUndefined();
    expect(deadLetterExchange({ arguments: {}, effective_policy_definition: policy })).toBe('by-policy');
    expect(deadLetterExchange({ arguments: { 'x-dead-letter-exchange': '' }, effective_policy_definition: policy })).toBe('');
  });
});

describe('logs', () => {
  const lane = { index: 0, queue: 'l-0', first_offset: 10, next_offset: 30, bytes: 9 };
  it('puts segments of all lanes on one scale', () => {
    const scale = scaleOf([lane as never, { ...lane, first_offset: 0, next_offset: 40 } as never]);
    const found = laneSegments({ ...lane, segments: [{ base_offset: 10 }, { base_offset: 20 }] }, scale);
    expect(found.map((one) => [one.left, one.width])).toEqual([[0.25, 0.25], [0.5, 0.25]]);
  });
  it('draws one block where only the number of segments is known, none when empty', () => {
    expect(laneSegments({ ...lane, segments: 3 }, { first: 10, next: 30 })).toHaveLength(1);
    expect(laneSegments({ ...lane, next_offset: 10, segments: 1 }, { first: 10, next: 30 })).toHaveLength(0);
  });
  it('counts what goes with a log in its partitions', () => {
    const parts = [{ ...lane, segments: 1 }, { ...lane, index: 1, queue: 'l-1', segments: 1, messages: 5 }];
    const log = { name: 'l', vhost: '/', partitioned: true, partitions: parts, groups: ['g'] };
    expect(lossWords(log)).toBe('The log, its bindings, 25 records, 2 partitions and the offsets of 1 group will be lost');
    const plain = { ...log, partitioned: false, partitions: parts.slice(1), groups: [] };
    expect(lossWords(plain)).toBe('The log, its bindings and 5 records will be lost');
    expect(logWithPartition([plain, log], 'l-1')).toBe(log);
    expect(logWithPartition([plain, log], 'l')).toBeUndefined();
  });
  it('says what becomes of old records', () => {
    const log = { name: 'l', vhost: '/', partitions: [] };
    expect(retentionWords(log)).toBe('kept for ever');
    expect(retentionWords({ ...log, max_age_ms: 604_800_000, max_length_bytes: 2048 })).toBe('kept for 7 d, at most 2 KiB');
  });
  it('reads reset targets', () => {
    expect(resetTarget('first', '')).toBe('first');
    expect(resetTarget('offset', '42')).toBe(42);
    expect(resetTarget('time', '2026-01-02T03:04:05Z')).toBe('2026-01-02T03:04:05.000Z');
    expect(() => resetTarget('offset', '-1')).toThrow('whole number');
  });
  it('asks for records and shows them as messages', () => {
    expect(recordsQuery('2', 'offset', '7')).toBe('partition=2&offset=7&count=50');
    expect(recordsQuery('0', 'first', '')).toBe('partition=0&offset=first&count=50');
    const record = { partition: 0, offset: 3, timestamp: 1_000, exchange: 'log', key: 'k', value: 'ä', encoding: 'string', headers: { a: 1 }, properties: {} };
    expect(shownRecord(record, 4_000)).toMatchObject({ position: 3, exchange: 'log', routing_key: 'k', payload_bytes: 2, age_ms: 3_000, properties: { headers: { a: 1 } } });
    expect(shownRecord({ ...record, value: 'AAE=', encoding: 'base64' }, 0)).toMatchObject({ payload_bytes: 2, age_ms: 0 });
  });
  it('tells how a group commits and who waits', () => {
    const member = { consumer_tag: 'c', connection: '1 -> 2', partitions: [0] };
    const idle = { consumer_tag: 'd', connection: 'HTTP API (d)', partitions: [] };
    const group = { group: 'g', members: [member, idle], partitions: [] };
    expect(commitWords(group)).toBe('commits by ack');
    expect(commitWords({ ...group, commit: 'delivery' })).toBe('commits before delivering');
    expect(commitWords({ ...group, commit: 'interval', commit_interval_ms: 5_000 })).toBe('commits every 5 s');
    expect(waitingMembers(group)).toEqual([idle]);
    expect([member, idle].map(isConnection)).toEqual([true, false]);
  });
});
