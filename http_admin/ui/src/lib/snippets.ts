/** Programs for pika with the address of this broker, to copy. */

import type { Overview } from '../api/types';

/** The URL for a client. The UI does not know the password, except that of guest. */
export function amqpUrl(
  overview: Pick<Overview, 'listeners'> | undefined,
  user: string,
  vhost: string,
  host: string,
): string {
  const listener = overview?.listeners.find((item) => item.protocol === 'amqp');
  const port = listener?.port ?? 5672;
  const secret = user === 'guest' ? 'guest' : 'PASSWORD';
  return `amqp://${encodeURIComponent(user)}:${secret}@${host}:${port}/${encodeURIComponent(vhost)}`;
}

/** A Python string literal; JSON's escapes are valid Python. */
const quoted = (text: string): string => JSON.stringify(text);

function opening(url: string): string {
  return `import pika\n\nurl = ${quoted(url)}\nconnection = pika.BlockingConnection(pika.URLParameters(url))\nchannel = connection.channel()\n`;
}

export function publishSnippet(url: string, queue = 'hello'): string {
  const name = quoted(queue);
  return `${opening(url)}channel.queue_declare(${name}, durable=True)\nchannel.basic_publish("", ${name}, b"Hello, hare!")\nconnection.close()\n`;
}

/** A log is read from its first record; without an offset only new records would be delivered. */
export function consumeSnippet(url: string, queue: string, isLog = false): string {
  const offset = isLog ? ', arguments={"x-stream-offset": "first"}' : '';
  return `${opening(url)}
def on_message(channel, method, properties, body):
    print(body)
    channel.basic_ack(method.delivery_tag)

channel.basic_qos(prefetch_count=20)
channel.basic_consume(${quoted(queue)}, on_message${offset})
channel.start_consuming()
`;
}

export function logSnippet(url: string): string {
  return `${opening(url)}channel.queue_declare(
    "clicks", durable=True,
    arguments={"x-queue-type": "stream", "x-partitions": 3, "x-max-age": "7D"},
)
channel.basic_publish("clicks", "user-17", b"first record")
connection.close()
`;
}
