<?php
// PHP's php-amqplib performs common operations; each step prints its name when it succeeds.
require_once 'PhpAmqpLib/autoload.php';

use PhpAmqpLib\Channel\AMQPChannel;
use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Exception\AMQPProtocolChannelException;
use PhpAmqpLib\Exception\AMQPBasicCancelException;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPTable;

[, $url, $prefix] = $argv;
$at = parse_url($url);
$named = fn (string $what): string => "$prefix-$what";

function done(string $step): void
{
    echo "ok $step\n";
}

function check(bool $is, mixed $what = null): void
{
    if (!$is) {
        throw new RuntimeException('not so: ' . var_export($what, true));
    }
}

function connect(array $at, int $heartbeat = 0): AMQPStreamConnection
{
    $vhost = urldecode(substr($at['path'] ?? '/', 1)) ?: '/';
    return new AMQPStreamConnection(
        $at['host'], $at['port'], $at['user'], $at['pass'], $vhost,
        heartbeat: $heartbeat, read_write_timeout: 20.0
    );
}

/** Waits until a callback has appended to the list, and removes the item. */
function take(AMQPChannel $channel, array &$arrived): mixed
{
    while (!$arrived) {
        $channel->wait(null, false, 20);
    }
    return array_shift($arrived);
}

$connection = connect($at);
$idle = connect($at, 2);
$idleSince = microtime(true);
$channel = $connection->channel();
$topic = $named('topic');
$queue = $named('q');

$channel->exchange_declare($topic, 'topic', false, true, false);
$channel->exchange_declare($named('fanout'), 'fanout', false, false, true);
$channel->queue_declare($queue, false, true, false, false);
$channel->exchange_bind($topic, $named('fanout'));
$channel->queue_bind($queue, $topic, 'a.#');
$channel->queue_bind($queue, $topic, 'b.*', false, new AMQPTable(['x-any' => 1]));
$channel->queue_unbind($queue, $topic, 'b.*', new AMQPTable(['x-any' => 1]));
check($channel->queue_declare($queue, true) == [$queue, 0, 0]);
[$temporary] = $channel->queue_declare('', false, false, true);
check(str_starts_with($temporary, 'amq.gen-'), $temporary);
done('declare');

$headers = [
    's' => 'ä', 'n' => 1, 'big' => 2 ** 40, 'yes' => true, 'nothing' => null,
    'list' => [1, 'two'], 'in' => ['deep' => ['er' => 1]],
];
$channel->confirm_select();
$acked = 0;
$channel->set_ack_handler(function () use (&$acked) {
    $acked++;
});
for ($i = 0; $i < 200; $i++) {
    $channel->basic_publish(new AMQPMessage("m$i", [
        'delivery_mode' => 2, 'content_type' => 'text/plain', 'message_id' => 'm-1', 'priority' => 3,
        'timestamp' => 1700000000, 'app_id' => 'php', 'expiration' => '60000',
        'application_headers' => new AMQPTable($headers),
    ]), $topic, 'a.b');
}
$channel->wait_for_pending_acks(20);
check($acked === 200, $acked);
done('confirms');

$arrived = [];
$keep = function (AMQPMessage $message) use (&$arrived) {
    $arrived[] = $message;
};
$channel->basic_qos(0, 10, false);
$channel->basic_consume($queue, 'reader', false, false, false, false, $keep);
for ($i = 0; $i < 200; $i++) {
    $message = take($channel, $arrived);
    check($message->body === "m$i" && !$message->isRedelivered(), $message->body);
    check($message->get('application_headers')->getNativeData() == $headers);
    check($message->get('message_id') === 'm-1' && $message->get('timestamp') == 1700000000);
    if ($i % 5 === 4) {
        $message->ack(true);
    }
}
done('consume');

$large = str_repeat('x', 1000000);
$channel->basic_publish(new AMQPMessage($large), '', $queue);
$message = take($channel, $arrived);
check($message->body === $large);
$message->nack(true);
$message = take($channel, $arrived);
check($message->isRedelivered() && $message->body === $large);
$message->ack();
$channel->basic_cancel('reader');
done('requeue');

$returned = [];
$channel->set_return_listener(function ($code, $text, $exchange, $key, $message) use (&$returned) {
    $returned[] = [$code, $message->body];
});
$channel->basic_publish(new AMQPMessage('back'), $topic, 'nowhere', true);
$channel->wait_for_pending_acks_returns(20);
check($returned === [[312, 'back']], $returned);
done('return');

$channel->basic_publish(new AMQPMessage('polled'), '', $queue);
$channel->wait_for_pending_acks(20);
$polled = $channel->basic_get($queue);
check($polled->body === 'polled');
$polled->ack();
check($channel->basic_get($queue) === null);
done('get');

$dying = $named('dying');
$channel->queue_declare($dying, false, true, false, false, false, new AMQPTable([
    'x-dead-letter-exchange' => '', 'x-dead-letter-routing-key' => $queue, 'x-max-length' => 10,
]));
$channel->basic_publish(new AMQPMessage('dead'), '', $dying);
$doomed = $connection->channel();
$dead = [];
$doomed->basic_consume($dying, 'doomed', false, false, false, false, function ($one) use (&$dead) {
    $dead[] = $one;
});
take($doomed, $dead)->reject(false);
$channel->basic_consume($queue, 'dead-letters', false, false, false, false, $keep);
$message = take($channel, $arrived);
$death = $message->get('application_headers')->getNativeData()['x-death'][0];
check($message->body === 'dead' && $death['reason'] === 'rejected' && $death['count'] === 1, $death);
$message->ack();
$channel->basic_cancel('dead-letters');
done('dead-letter');

$transactional = $connection->channel();
$transactional->tx_select();
foreach (['tx_rollback', 'tx_commit'] as $end) {
    $transactional->basic_publish(new AMQPMessage('tx'), '', $queue);
    $transactional->$end();
}
check($channel->queue_declare($queue, true)[1] === 1);
done('transaction');

$server = $connection->channel();
$asked = [];
$server->basic_consume($temporary, '', false, true, false, false, function ($one) use (&$asked) {
    $asked[] = $one;
});
$channel->basic_consume('amq.rabbitmq.reply-to', '', false, true, false, false, $keep);
$request = new AMQPMessage('ping', ['reply_to' => 'amq.rabbitmq.reply-to']);
$channel->basic_publish($request, '', $temporary);
$server->basic_publish(new AMQPMessage('pong'), '', take($server, $asked)->get('reply_to'));
check(take($channel, $arrived)->body === 'pong');
done('reply-to');

$server->queue_delete($dying);
try {
    $doomed->wait(null, false, 20);
    check(false, 'no cancel');
} catch (AMQPBasicCancelException $told) {
    check($told->consumerTag === 'doomed');
}
done('cancelled');

try {
    $connection->channel()->queue_declare($queue, false, false, false, false);
    check(false, 'redeclared');
} catch (AMQPProtocolChannelException $refused) {
    check($refused->getCode() === 406, $refused->getMessage());
}
done('refused');

while (microtime(true) < $idleSince + 6.5) { // more than two and a half heartbeat intervals
    usleep(400000);
    $idle->checkHeartBeat();
}
$idle->channel()->queue_declare($queue, true);
$idle->close();
done('heartbeat');

$channel->queue_delete($queue);
$channel->exchange_delete($topic);
$channel->close();
$connection->close();
done('close');
