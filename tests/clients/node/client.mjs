// Node's amqplib performs common operations; each step prints its name when it succeeds.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { setTimeout as pause } from 'node:timers/promises';
import amqp from 'amqplib';

const [, , url, prefix] = process.argv;
const named = (what) => `${prefix}-${what}`;
const text = (message) => message.content.toString();
const done = (step) => console.log(`ok ${step}`);

/** A consumer whose deliveries are awaited one by one. */
async function consumer(channel, queue, options) {
  const waiting = [];
  const arrived = [];
  const { consumerTag } = await channel.consume(queue, (message) => {
    const next = waiting.shift();
    if (next) next(message);
    else arrived.push(message);
  }, options);
  const next = () => arrived.length
    ? Promise.resolve(arrived.shift())
    : new Promise((resolve) => waiting.push(resolve));
  return { tag: consumerTag, next, held: arrived };
}

const connection = await amqp.connect(url);
const idle = await amqp.connect(`${url}?heartbeat=1`);
const idleSince = Date.now();
const channel = await connection.createConfirmChannel();
const queue = named('q');

await channel.assertExchange(named('topic'), 'topic', { durable: true });
await channel.assertExchange(named('fanout'), 'fanout', { autoDelete: true });
await channel.assertQueue(queue, { durable: true });
await channel.bindExchange(named('topic'), named('fanout'));
await channel.bindQueue(queue, named('topic'), 'a.#');
await channel.bindQueue(queue, named('topic'), 'b.*', { 'x-any': 1 });
await channel.unbindQueue(queue, named('topic'), 'b.*', { 'x-any': 1 });
assert.deepEqual(await channel.checkQueue(queue), { queue, messageCount: 0, consumerCount: 0 });
const { queue: temporary } = await channel.assertQueue('', { exclusive: true });
assert.match(temporary, /^amq\.gen-/);
done('declare');

const headers = { s: 'ä', n: 1, big: 2 ** 40, f: 1.5, yes: true, list: [1, 'two', null], in: { deep: { er: 1 } } };
const options = {
  persistent: true, contentType: 'text/plain', headers, messageId: 'm-1', correlationId: 'c-1',
  timestamp: 1700000000, type: 't', appId: 'node', priority: 3, expiration: '60000',
};
for (let i = 0; i < 200; i += 1) channel.publish(named('topic'), 'a.b', Buffer.from(`m${i}`), options);
await channel.waitForConfirms();
assert.equal((await channel.checkQueue(queue)).messageCount, 200);
done('confirms');

await channel.prefetch(10);
const reader = await consumer(channel, queue);
for (let i = 0; i < 200; i += 1) {
  const message = await reader.next();
  assert.equal(text(message), `m${i}`);
  assert.equal(message.fields.redelivered, false);
  assert.deepEqual(message.properties.headers, headers);
  assert.equal(message.properties.messageId, 'm-1');
  assert.equal(message.properties.timestamp, 1700000000);
  assert.ok(reader.held.length < 10);
  if (i % 5 === 4) channel.ack(message, true);
}
done('consume');

const large = Buffer.alloc(1_000_000, 'x');
channel.publish('', queue, large);
const arrived = await reader.next();
assert.ok(arrived.content.equals(large));
channel.nack(arrived);
const again = await reader.next();
assert.ok(again.fields.redelivered && again.content.equals(large));
channel.ack(again);
await channel.cancel(reader.tag);
done('requeue');

channel.publish(named('topic'), 'nowhere', Buffer.from('back'), { mandatory: true });
const [returned] = await once(channel, 'return');
assert.equal(text(returned), 'back');
assert.equal(returned.fields.replyCode, 312);
await channel.waitForConfirms();
done('return');

channel.sendToQueue(queue, Buffer.from('polled'));
await channel.waitForConfirms();
const polled = await channel.get(queue);
assert.equal(text(polled), 'polled');
channel.ack(polled);
assert.equal(await channel.get(queue), false);
done('get');

const dying = named('dying');
await channel.assertQueue(dying, {
  durable: true, deadLetterExchange: '', deadLetterRoutingKey: queue, maxLength: 10,
});
channel.sendToQueue(dying, Buffer.from('dead'));
const doomed = await consumer(channel, dying);
channel.reject(await doomed.next(), false);
const deadLetters = await consumer(channel, queue);
const dead = await deadLetters.next();
assert.equal(text(dead), 'dead');
assert.equal(dead.properties.headers['x-death'][0].reason, 'rejected');
assert.equal(dead.properties.headers['x-first-death-queue'], dying);
channel.ack(dead);
await channel.cancel(deadLetters.tag);
done('dead-letter');

const server = await connection.createChannel();
const requests = await consumer(server, temporary, { noAck: true });
const replies = await consumer(channel, 'amq.rabbitmq.reply-to', { noAck: true });
channel.publish('', temporary, Buffer.from('ping'), { replyTo: 'amq.rabbitmq.reply-to' });
const request = await requests.next();
server.publish('', request.properties.replyTo, Buffer.from('pong'));
assert.equal(text(await replies.next()), 'pong');
done('reply-to');

await server.deleteQueue(dying);
assert.equal(await doomed.next(), null);
done('cancelled');

const doubtful = await connection.createChannel();
const refused = once(doubtful, 'error');
await assert.rejects(doubtful.assertQueue(queue, { durable: false }), /406|PRECONDITION/);
assert.equal((await refused)[0].code, 406);
done('refused');

await pause(Math.max(0, idleSince + 3500 - Date.now()));
await (await idle.createChannel()).checkQueue(queue);
await idle.close();
done('heartbeat');

await channel.deleteQueue(queue);
await channel.deleteExchange(named('topic'));
await channel.close();
await connection.close();
done('close');
