<?php
// PHP's extension amqp performs common operations; each step prints its name when it succeeds.
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

$login = [
    'host' => $at['host'], 'port' => $at['port'], 'login' => $at['user'], 'password' => $at['pass'],
    'vhost' => urldecode(substr($at['path'] ?? '/', 1)) ?: '/', 'read_timeout' => 20,
];
$connection = new AMQPConnection($login);
$connection->connect();
$idle = new AMQPConnection(['heartbeat' => 2] + $login);
$idle->connect();
$channel = new AMQPChannel($connection);

$topic = new AMQPExchange($channel);
$topic->setName($named('topic'));
$topic->setType(AMQP_EX_TYPE_TOPIC);
$topic->setFlags(AMQP_DURABLE);
$topic->declareExchange();
$queue = new AMQPQueue($channel);
$queue->setName($named('q'));
$queue->setFlags(AMQP_DURABLE);
check($queue->declareQueue() === 0);
$queue->bind($named('topic'), 'a.#');
$queue->bind($named('topic'), 'b.*', ['x-any' => 1]);
$queue->unbind($named('topic'), 'b.*', ['x-any' => 1]);
$temporary = new AMQPQueue($channel);
$temporary->setFlags(AMQP_EXCLUSIVE);
$temporary->declareQueue();
check(str_starts_with($temporary->getName(), 'amq.gen-'), $temporary->getName());
done('declare');

$channel->confirmSelect();
$last = 0;
$channel->setConfirmCallback(
    function (int $tag, bool $multiple) use (&$last) {
        $last = $tag;
        return $tag < 200;
    },
    fn () => check(false, 'nack')
);
$headers = ['s' => 'ä', 'n' => 1, 'f' => 1.5, 'yes' => true, 'in' => ['deep' => ['er' => 1]]];
for ($i = 0; $i < 200; $i++) {
    $topic->publish("m$i", 'a.b', AMQP_NOPARAM, [
        'delivery_mode' => 2, 'message_id' => 'm-1', 'headers' => $headers, 'timestamp' => 1700000000,
    ]);
}
$channel->waitForConfirm(20);
check($last === 200, $last);
done('confirms');

$second = new AMQPChannel($connection);
$second->qos(0, 10);
$reader = new AMQPQueue($second);
$reader->setName($named('q'));
$seen = 0;
$reader->consume(function (AMQPEnvelope $got, AMQPQueue $from) use (&$seen, $headers) {
    check($got->getBody() === "m$seen" && !$got->isRedelivery(), $got->getBody());
    check($got->getHeaders() == $headers, $got->getHeaders());
    if (++$seen % 5 === 0) {
        $from->ack($got->getDeliveryTag(), AMQP_MULTIPLE);
    }
    return $seen < 200;
});
$reader->cancel();
done('consume');

$default = new AMQPExchange($second);
$large = str_repeat('x', 1000000);
$default->publish($large, $named('q'));
while (!($got = $reader->get())) {
    usleep(10000);
}
check($got->getBody() === $large && !$got->isRedelivery());
$reader->nack($got->getDeliveryTag(), AMQP_REQUEUE);
$got = $reader->get();
check($got->isRedelivery() && $got->getBody() === $large);
$reader->ack($got->getDeliveryTag());
check($reader->get() === false);
done('requeue');
done('get');

$returned = null;
$second->setReturnCallback(function ($code, $text, $exchange, $key, $properties, $body) use (&$returned) {
    $returned = [$code, $body];
    return false;
});
$again = new AMQPExchange($second);
$again->setName($named('topic'));
$again->publish('back', 'nowhere', AMQP_MANDATORY);
$second->waitForBasicReturn(20);
check($returned === [312, 'back'], $returned);
done('return');

$dying = new AMQPQueue($second);
$dying->setName($named('dying'));
$dying->setArguments(['x-dead-letter-exchange' => '', 'x-dead-letter-routing-key' => $named('q')]);
$dying->declareQueue();
$default->publish('dead', $named('dying'));
while (!($got = $dying->get())) {
    usleep(10000);
}
$dying->reject($got->getDeliveryTag());
while (!($got = $reader->get(AMQP_AUTOACK))) {
    usleep(10000);
}
check($got->getBody() === 'dead' && $got->getHeader('x-death')[0]['reason'] === 'rejected');
done('dead-letter');

$third = new AMQPChannel($connection);
$transactional = new AMQPExchange($third);
$third->startTransaction();
$transactional->publish('tx', $named('q'));
$third->rollbackTransaction();
$transactional->publish('tx', $named('q'));
$third->commitTransaction();
$reader->setFlags(AMQP_PASSIVE);
check($reader->declareQueue() === 1, 'one message');
done('transaction');

try {
    $other = new AMQPQueue(new AMQPChannel($connection));
    $other->setName($named('q'));
    $other->declareQueue();
    check(false, 'redeclared');
} catch (AMQPQueueException $refused) {
    check($refused->getCode() === 406, $refused->getMessage());
}
done('refused');

$dying->delete();
$reader->delete();
$again->delete();
$second->close();
$connection->disconnect();
$idle->disconnect();
done('close');
