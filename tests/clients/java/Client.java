// Java's amqp-client performs common operations; each step prints its name when it succeeds.
import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Envelope;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.IOException;
import java.util.Arrays;
import java.util.Date;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

public class Client {
    record Delivery(Envelope envelope, AMQP.BasicProperties properties, byte[] body) {
        String text() {
            return new String(body);
        }
    }

    static class Reader extends DefaultConsumer {
        final BlockingQueue<Delivery> arrived = new LinkedBlockingQueue<>();
        final BlockingQueue<String> cancelled = new LinkedBlockingQueue<>();

        Reader(Channel channel) {
            super(channel);
        }

        @Override
        public void handleDelivery(
                String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body) {
            arrived.add(new Delivery(envelope, properties, body));
        }

        @Override
        public void handleCancel(String tag) {
            cancelled.add(tag);
        }
    }

    static <T> T next(BlockingQueue<T> from) throws InterruptedException {
        T one = from.poll(20, TimeUnit.SECONDS);
        check(one != null, "nothing came");
        return one;
    }

    static void check(boolean is, Object what) {
        if (!is) {
            throw new AssertionError(String.valueOf(what));
        }
    }

    static void done(String step) {
        System.out.println("ok " + step);
    }

    public static void main(String[] arguments) throws Exception {
        String prefix = arguments[1];
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(arguments[0]);
        factory.setAutomaticRecoveryEnabled(false);
        Connection connection = factory.newConnection();
        factory.setRequestedHeartbeat(1);
        Connection idle = factory.newConnection();
        long idleSince = System.currentTimeMillis();
        Channel channel = connection.createChannel();
        String topic = prefix + "-topic";
        String queue = prefix + "-q";

        channel.exchangeDeclare(topic, "topic", true);
        channel.exchangeDeclare(prefix + "-fanout", "fanout", false, true, null);
        channel.queueDeclare(queue, true, false, false, null);
        channel.exchangeBind(topic, prefix + "-fanout", "");
        channel.queueBind(queue, topic, "a.#");
        channel.queueBind(queue, topic, "b.*", Map.of("x-any", 1));
        channel.queueUnbind(queue, topic, "b.*", Map.of("x-any", 1));
        check(channel.queueDeclarePassive(queue).getMessageCount() == 0, "not empty");
        String temporary = channel.queueDeclare().getQueue();
        check(temporary.startsWith("amq.gen-"), temporary);
        done("declare");

        Map<String, Object> headers = new HashMap<>();
        headers.put("n", 1);
        headers.put("big", 1L << 40);
        headers.put("short", (short) 7);
        headers.put("byte", (byte) -7);
        headers.put("f", 1.5);
        headers.put("yes", true);
        headers.put("nothing", null);
        headers.put("list", List.of(1, 2L));
        headers.put("in", Map.of("deep", Map.of("er", 1)));
        headers.put("when", new Date(1700000000000L));
        AMQP.BasicProperties properties = new AMQP.BasicProperties.Builder()
            .headers(headers).deliveryMode(2).contentType("text/plain").messageId("m-1")
            .correlationId("c-1").priority(3).timestamp(new Date(1700000000000L)).appId("java")
            .expiration("60000").build();
        channel.confirmSelect();
        for (int i = 0; i < 200; i++) {
            channel.basicPublish(topic, "a.b", properties, ("m" + i).getBytes());
        }
        channel.waitForConfirmsOrDie(20000);
        check(channel.messageCount(queue) == 200, channel.messageCount(queue));
        done("confirms");

        channel.basicQos(10);
        Reader reader = new Reader(channel);
        String tag = channel.basicConsume(queue, false, reader);
        for (int i = 0; i < 200; i++) {
            Delivery got = next(reader.arrived);
            check(got.text().equals("m" + i) && !got.envelope().isRedeliver(), got.text());
            check(got.properties().getHeaders().equals(headers), got.properties().getHeaders());
            check(got.properties().getTimestamp().getTime() == 1700000000000L, "timestamp");
            check(reader.arrived.size() < 10, "prefetch");
            if (i % 5 == 4) {
                channel.basicAck(got.envelope().getDeliveryTag(), true);
            }
        }
        done("consume");

        byte[] large = new byte[1_000_000];
        Arrays.fill(large, (byte) 'x');
        channel.basicPublish("", queue, null, large);
        Delivery got = next(reader.arrived);
        check(Arrays.equals(got.body(), large), "large");
        channel.basicNack(got.envelope().getDeliveryTag(), false, true);
        got = next(reader.arrived);
        check(got.envelope().isRedeliver() && Arrays.equals(got.body(), large), "large again");
        channel.basicAck(got.envelope().getDeliveryTag(), false);
        channel.basicCancel(tag);
        done("requeue");

        BlockingQueue<String> returned = new LinkedBlockingQueue<>();
        channel.addReturnListener((code, text, exchange, key, what, body) ->
            returned.add(code + " " + text + " " + new String(body)));
        channel.basicPublish(topic, "nowhere", true, null, "back".getBytes());
        check(next(returned).equals("312 NO_ROUTE back"), "return");
        channel.waitForConfirmsOrDie(20000);
        done("return");

        channel.basicPublish("", queue, null, "polled".getBytes());
        channel.waitForConfirmsOrDie(20000);
        GetResponse polled = channel.basicGet(queue, false);
        check(new String(polled.getBody()).equals("polled"), "polled");
        channel.basicAck(polled.getEnvelope().getDeliveryTag(), false);
        check(channel.basicGet(queue, true) == null, "more");
        done("get");

        String dying = prefix + "-dying";
        channel.queueDeclare(dying, true, false, false, Map.of(
            "x-dead-letter-exchange", "", "x-dead-letter-routing-key", queue, "x-max-length", 10));
        Reader doomed = new Reader(channel);
        String doomedTag = channel.basicConsume(dying, false, doomed);
        channel.basicPublish("", dying, null, "dead".getBytes());
        channel.basicReject(next(doomed.arrived).envelope().getDeliveryTag(), false);
        Reader deadLetters = new Reader(channel);
        String deadLetterTag = channel.basicConsume(queue, false, deadLetters);
        Delivery dead = next(deadLetters.arrived);
        Map<?, ?> death = (Map<?, ?>) ((List<?>) dead.properties().getHeaders().get("x-death")).get(0);
        check(death.get("reason").toString().equals("rejected"), death);
        check(((Long) death.get("count")) == 1L, death);
        channel.basicAck(dead.envelope().getDeliveryTag(), false);
        channel.basicCancel(deadLetterTag);
        done("dead-letter");

        Channel transactional = connection.createChannel();
        transactional.txSelect();
        transactional.basicPublish("", queue, null, "tx".getBytes());
        transactional.txRollback();
        transactional.basicPublish("", queue, null, "tx".getBytes());
        transactional.txCommit();
        check(channel.messageCount(queue) == 1, channel.messageCount(queue));
        done("transaction");

        Channel server = connection.createChannel();
        Reader requests = new Reader(server);
        server.basicConsume(temporary, true, requests);
        Reader replies = new Reader(channel);
        channel.basicConsume("amq.rabbitmq.reply-to", true, replies);
        channel.basicPublish("", temporary, new AMQP.BasicProperties.Builder()
            .replyTo("amq.rabbitmq.reply-to").build(), "ping".getBytes());
        String to = next(requests.arrived).properties().getReplyTo();
        server.basicPublish("", to, null, "pong".getBytes());
        check(next(replies.arrived).text().equals("pong"), "pong");
        done("reply-to");

        server.queueDelete(dying);
        check(next(doomed.cancelled).equals(doomedTag), "cancel");
        done("cancelled");

        try {
            connection.createChannel().queueDeclare(queue, false, false, false, null);
            check(false, "redeclared");
        } catch (IOException refused) {
            ShutdownSignalException why = (ShutdownSignalException) refused.getCause();
            check(((AMQP.Channel.Close) why.getReason()).getReplyCode() == 406, why);
        }
        done("refused");

        Thread.sleep(Math.max(0, idleSince + 3500 - System.currentTimeMillis()));
        idle.createChannel().queueDeclarePassive(queue);
        idle.close();
        done("heartbeat");

        channel.queueDelete(queue);
        channel.exchangeDelete(topic);
        channel.close();
        connection.close();
        done("close");
    }
}
