/* C's librabbitmq performs common operations; each step prints its name when it succeeds. */
#include <amqp.h>
#include <amqp_framing.h>
#include <amqp_tcp_socket.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static amqp_connection_state_t link_to;

static void done(const char *step) {
    printf("ok %s\n", step);
    fflush(stdout);
}

static void check(int is, const char *what) {
    if (!is) {
        fprintf(stderr, "not so: %s\n", what);
        exit(1);
    }
}

static void well(amqp_rpc_reply_t reply, const char *what) {
    if (reply.reply_type == AMQP_RESPONSE_SERVER_EXCEPTION &&
        reply.reply.id == AMQP_CHANNEL_CLOSE_METHOD) {
        amqp_channel_close_t *close = reply.reply.decoded;
        fprintf(stderr, "%.*s\n", (int)close->reply_text.len, (char *)close->reply_text.bytes);
    }
    check(reply.reply_type == AMQP_RESPONSE_NORMAL, what);
}

static void did(const char *what) { well(amqp_get_rpc_reply(link_to), what); }

static amqp_bytes_t named(const char *prefix, const char *what) {
    static char names[8][256];
    static int used;
    char *name = names[used++ % 8];
    snprintf(name, sizeof names[0], "%s-%s", prefix, what);
    return amqp_cstring_bytes(name);
}

static amqp_connection_state_t connect_to(char *url, int heartbeat) {
    struct amqp_connection_info at;
    char *copy = strdup(url);
    check(amqp_parse_url(copy, &at) == AMQP_STATUS_OK, "url");
    amqp_connection_state_t connection = amqp_new_connection();
    amqp_socket_t *socket = amqp_tcp_socket_new(connection);
    check(amqp_socket_open(socket, at.host, at.port) == AMQP_STATUS_OK, "socket");
    well(amqp_login(connection, at.vhost, 0, 131072, heartbeat, AMQP_SASL_METHOD_PLAIN, at.user,
                    at.password), "login");
    amqp_channel_open(connection, 1);
    well(amqp_get_rpc_reply(connection), "channel.open");
    return connection;
}

static int same(amqp_bytes_t bytes, const char *text) {
    return bytes.len == strlen(text) && !memcmp(bytes.bytes, text, bytes.len);
}

/* Channel 1 confirms; channel 3 does not, so that nothing comes between deliveries. */
static void publish_on(int channel, amqp_bytes_t exchange, amqp_bytes_t key, int mandatory,
                       const char *text) {
    amqp_basic_properties_t properties;
    properties._flags = AMQP_BASIC_DELIVERY_MODE_FLAG | AMQP_BASIC_MESSAGE_ID_FLAG;
    properties.delivery_mode = 2;
    properties.message_id = amqp_cstring_bytes("m-1");
    check(amqp_basic_publish(link_to, channel, exchange, key, mandatory, 0, &properties,
                             amqp_cstring_bytes(text)) == AMQP_STATUS_OK, "publish");
}

static void publish(amqp_bytes_t exchange, amqp_bytes_t key, int mandatory, const char *text) {
    publish_on(1, exchange, key, mandatory, text);
}

/* Wait for this method on channel 1 and give its arguments. */
static void *expect(amqp_method_number_t method) {
    amqp_frame_t frame;
    struct timeval limit = {20, 0};
    check(amqp_simple_wait_frame_noblock(link_to, &frame, &limit) == AMQP_STATUS_OK, "a frame");
    check(frame.frame_type == AMQP_FRAME_METHOD && frame.payload.method.id == method,
          amqp_method_name(method));
    return frame.payload.method.decoded;
}

static void confirmed(int count) {
    static uint64_t seen;
    uint64_t until = seen + count;
    while (seen < until) {
        amqp_basic_ack_t *ack = expect(AMQP_BASIC_ACK_METHOD);
        seen = ack->multiple ? ack->delivery_tag : seen + 1;
    }
}

static amqp_envelope_t *next(void) {
    static amqp_envelope_t envelope;
    struct timeval limit = {20, 0};
    well(amqp_consume_message(link_to, &envelope, &limit, 0), "a delivery");
    return &envelope;
}

int main(int count, char **arguments) {
    check(count == 3, "usage: client URL PREFIX");
    char *prefix = arguments[2];
    link_to = connect_to(arguments[1], 0);
    amqp_connection_state_t idle = connect_to(arguments[1], 2);
    time_t idle_since = time(NULL);
    amqp_bytes_t nothing = amqp_empty_bytes, topic = named(prefix, "topic");
    amqp_bytes_t queue = named(prefix, "q"), dying = named(prefix, "dying");

    amqp_exchange_declare(link_to, 1, topic, amqp_cstring_bytes("topic"), 0, 1, 0, 0,
                          amqp_empty_table);
    did("exchange.declare");
    amqp_queue_declare(link_to, 1, queue, 0, 1, 0, 0, amqp_empty_table);
    did("queue.declare");
    amqp_queue_bind(link_to, 1, queue, topic, amqp_cstring_bytes("a.#"), amqp_empty_table);
    did("queue.bind");
    amqp_queue_declare_ok_t *ok =
        amqp_queue_declare(link_to, 1, nothing, 0, 0, 1, 1, amqp_empty_table);
    did("queue.declare");
    check(ok->queue.len > 8 && !memcmp(ok->queue.bytes, "amq.gen-", 8), "server-made name");
    done("declare");

    amqp_confirm_select(link_to, 1);
    did("confirm.select");
    char text[32];
    for (int i = 0; i < 200; i++) {
        snprintf(text, sizeof text, "m%d", i);
        publish(topic, amqp_cstring_bytes("a.b"), 0, text);
    }
    confirmed(200);
    done("confirms");

    amqp_basic_qos(link_to, 1, 0, 10, 0);
    did("basic.qos");
    amqp_basic_consume(link_to, 1, queue, amqp_cstring_bytes("reader"), 0, 0, 0, amqp_empty_table);
    did("basic.consume");
    for (int i = 0; i < 200; i++) {
        amqp_envelope_t *got = next();
        snprintf(text, sizeof text, "m%d", i);
        check(same(got->message.body, text) && !got->redelivered, text);
        check(same(got->message.properties.message_id, "m-1"), "message_id");
        if (i % 5 == 4)
            amqp_basic_ack(link_to, 1, got->delivery_tag, 1);
        amqp_destroy_envelope(got);
    }
    done("consume");

    char *large = malloc(1000001);
    memset(large, 'x', 1000000);
    large[1000000] = 0;
    amqp_channel_open(link_to, 3);
    did("channel.open");
    publish_on(3, nothing, queue, 0, large);
    amqp_envelope_t *got = next();
    check(same(got->message.body, large), "large");
    amqp_basic_nack(link_to, 1, got->delivery_tag, 0, 1);
    amqp_destroy_envelope(got);
    got = next();
    check(got->redelivered && same(got->message.body, large), "large again");
    amqp_basic_ack(link_to, 1, got->delivery_tag, 0);
    amqp_destroy_envelope(got);
    amqp_basic_cancel(link_to, 1, amqp_cstring_bytes("reader"));
    did("basic.cancel");
    done("requeue");

    publish(topic, amqp_cstring_bytes("nowhere"), 1, "back");
    amqp_basic_return_t *back = expect(AMQP_BASIC_RETURN_METHOD);
    check(back->reply_code == 312, "reply code");
    amqp_message_t returned;
    well(amqp_read_message(link_to, 1, &returned, 0), "returned message");
    check(same(returned.body, "back"), "returned body");
    amqp_destroy_message(&returned);
    confirmed(1);
    done("return");

    publish(nothing, queue, 0, "polled");
    confirmed(1);
    amqp_rpc_reply_t reply = amqp_basic_get(link_to, 1, queue, 0);
    check(reply.reply.id == AMQP_BASIC_GET_OK_METHOD, "get-ok");
    uint64_t tag = ((amqp_basic_get_ok_t *)reply.reply.decoded)->delivery_tag;
    amqp_message_t polled;
    well(amqp_read_message(link_to, 1, &polled, 0), "polled message");
    check(same(polled.body, "polled"), "polled body");
    amqp_destroy_message(&polled);
    amqp_basic_ack(link_to, 1, tag, 0);
    reply = amqp_basic_get(link_to, 1, queue, 1);
    check(reply.reply.id == AMQP_BASIC_GET_EMPTY_METHOD, "get-empty");
    done("get");

    amqp_table_entry_t entries[2];
    entries[0].key = amqp_cstring_bytes("x-dead-letter-exchange");
    entries[1].key = amqp_cstring_bytes("x-dead-letter-routing-key");
    entries[0].value.kind = entries[1].value.kind = AMQP_FIELD_KIND_UTF8;
    entries[0].value.value.bytes = nothing;
    entries[1].value.value.bytes = queue;
    amqp_table_t table = {2, entries};
    amqp_queue_declare(link_to, 1, dying, 0, 1, 0, 0, table);
    did("queue.declare");
    amqp_basic_consume(link_to, 1, dying, amqp_cstring_bytes("doomed"), 0, 0, 0, amqp_empty_table);
    did("basic.consume");
    publish_on(3, nothing, dying, 0, "dead");
    got = next();
    amqp_basic_reject(link_to, 1, got->delivery_tag, 0);
    amqp_destroy_envelope(got);
    amqp_basic_consume(link_to, 1, queue, amqp_cstring_bytes("dead-letters"), 0, 1, 0, amqp_empty_table);
    did("basic.consume");
    got = next();
    check(same(got->message.body, "dead"), "dead body");
    check(got->message.properties._flags & AMQP_BASIC_HEADERS_FLAG, "x-death");
    amqp_destroy_envelope(got);
    amqp_basic_cancel(link_to, 1, amqp_cstring_bytes("dead-letters"));
    did("basic.cancel");
    done("dead-letter");

    amqp_channel_open(link_to, 2);
    did("channel.open");
    amqp_tx_select(link_to, 2);
    did("tx.select");
    for (int commits = 0; commits < 2; commits++) {
        amqp_basic_publish(link_to, 2, nothing, queue, 0, 0, NULL, amqp_cstring_bytes("tx"));
        if (commits)
            amqp_tx_commit(link_to, 2);
        else
            amqp_tx_rollback(link_to, 2);
        did("tx");
    }
    ok = amqp_queue_declare(link_to, 1, queue, 1, 0, 0, 0, amqp_empty_table);
    did("passive");
    check(ok->message_count == 1, "one message");
    done("transaction");

    amqp_queue_declare(link_to, 2, queue, 0, 0, 0, 0, amqp_empty_table);
    reply = amqp_get_rpc_reply(link_to);
    check(reply.reply_type == AMQP_RESPONSE_SERVER_EXCEPTION, "refused");
    check(((amqp_channel_close_t *)reply.reply.decoded)->reply_code == 406, "406");
    amqp_channel_close_ok_t close_ok;
    amqp_send_method(link_to, 2, AMQP_CHANNEL_CLOSE_OK_METHOD, &close_ok);
    done("refused");

    while (time(NULL) < idle_since + 7) { /* twice and a half the heartbeat, and more */
        amqp_frame_t frame;
        struct timeval moment = {0, 300000};
        int status = amqp_simple_wait_frame_noblock(idle, &frame, &moment);
        check(status == AMQP_STATUS_TIMEOUT, "idle");
    }
    amqp_queue_declare(idle, 1, queue, 1, 0, 0, 0, amqp_empty_table);
    well(amqp_get_rpc_reply(idle), "alive");
    well(amqp_connection_close(idle, AMQP_REPLY_SUCCESS), "close");
    done("heartbeat");

    amqp_queue_delete(link_to, 1, queue, 0, 0);
    did("queue.delete");
    amqp_queue_delete(link_to, 1, dying, 0, 0);
    did("queue.delete");
    amqp_exchange_delete(link_to, 1, topic, 0);
    did("exchange.delete");
    well(amqp_channel_close(link_to, 1, AMQP_REPLY_SUCCESS), "channel.close");
    well(amqp_connection_close(link_to, AMQP_REPLY_SUCCESS), "connection.close");
    check(amqp_destroy_connection(link_to) == AMQP_STATUS_OK, "destroy");
    done("close");
    return 0;
}
