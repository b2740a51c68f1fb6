"""Rows C-65 to C-73: which queues a message reaches."""

from __future__ import annotations

import pytest
from pamqp.commands import Exchange, Queue

TOPICS = {
    "a.*.c": {"a.b.c": True, "a..c": True, "a.c": False, "a.b.b.c": False},
    "*.*": {".": True, "a.b": True, "a": False, "a.b.c": False},
    "*": {"a": True, "": False, "a.b": False},
    "#": {"": True, "a": True, "a.b.c": True, ".": True},
    "a.#": {"a": True, "a.": True, "a.b": True, "a.b.c": True, "ab": False, "": False},
    "#.a": {"a": True, "b.a": True, "c.b.a": True, "a.b": False},
    "a.#.b": {"a.b": True, "a.x.b": True, "a.x.y.b": True, "a.b.c": False},
    "*.#": {"": False, "a": True, "a.b": True},
    "#.*": {"": False, "a": True, "a.b": True},
    "a#": {"a#": True, "a": False, "ab": False},
    "**": {"**": True, "a": False, "ab": False},
    "a": {"a": True, "a.": False, "A": False},
    "a.": {"a.": True, "a": False},
    "": {"": True, "a": False},
    "#.a.#": {"a": True, "x.a.y": True, "x.y": False},
    "#.a.*.#": {"a": False, "a.b": True, "x.a.b.c": True, "a.a": True},
}


@pytest.fixture
def router(channel, names):
    """Declares an exchange of a type with one bound queue, and tests whether keys match."""

    def make(kind, key="", arguments=None):
        exchange, queue = names.exchange(), names.queue()
        channel.exchange(exchange, kind)
        channel.declare(queue)
        channel.bind(queue, exchange, key, arguments)
        channel.confirm_select()

        def matches(key="", **properties):
            channel.publish(exchange, key, mandatory=True, **properties)
            answer = channel.client.next_on(1).decode()
            if answer.name == "Basic.Return":
                channel.client.next_on(1)
                channel.client.next_on(1)
                answer = channel.client.next_on(1).decode()
                assert answer.name == "Basic.Ack"
                return False
            assert answer.name == "Basic.Ack"
            return True

        return matches

    return make


@pytest.mark.parametrize("pattern", TOPICS, ids=repr)
def test_c065_topic_patterns(router, pattern):
    matches = router("topic", pattern)
    assert {key: matches(key) for key in TOPICS[pattern]} == TOPICS[pattern]


def test_c065_all_patterns_on_one_exchange(channel, names):
    exchange = names.exchange()
    channel.exchange(exchange, "topic")
    queues = {}
    for pattern in TOPICS:
        queues[pattern] = names.queue()
        channel.declare(queues[pattern])
        channel.bind(queues[pattern], exchange, pattern)
    channel.confirm_select()
    keys = sorted({key for cases in TOPICS.values() for key in cases})
    for key in keys:
        channel.publish(exchange, key, key.encode())
    channel.confirmed(len(keys))
    for pattern, queue in queues.items():
        received = {body.decode() for body in channel.drain(queue)}
        expected_matches = TOPICS[pattern]
        assert {key: key in received for key in expected_matches} == expected_matches, pattern


def test_c065_unbound_pattern_no_longer_matches(channel, names):
    exchange, queue = names.exchange(), names.queue()
    channel.exchange(exchange, "topic")
    channel.declare(queue)
    channel.bind(queue, exchange, "a.*")
    channel.bind(queue, exchange, "a.#")
    channel.fill_through(exchange, "a.b", queue, 1)
    channel.call(Queue.Unbind(queue=queue, exchange=exchange, routing_key="a.#"))
    channel.fill_through(exchange, "a.b", queue, 2)
    channel.publish(exchange, "a", mandatory=True)
    assert channel.returned().method.reply_code == 312


def test_c066_more_than_two_multi_word_wildcards(channel, names, expected):
    exchange, queue = names.exchange(), names.queue()
    channel.exchange(exchange, "topic")
    channel.declare(queue)
    channel.bind(queue, exchange, "#.a.#")
    bind = Queue.Bind(queue=queue, exchange=exchange, routing_key="#.a.#.b.#")
    if expected(leveret=True, rabbitmq=False):
        channel.refused(bind, 406)
    else:
        channel.call(bind)


def test_c067_headers_without_x_match_means_all(router):
    matches = router("headers", arguments={"a": 1, "b": "two"})
    assert matches(headers={"a": 1, "b": "two", "c": 3})
    assert not matches(headers={"a": 1})
    assert not matches()


def test_c067_headers_with_empty_arguments_match_everything(router):
    matches = router("headers")
    assert matches()
    assert matches(headers={"a": 1})


def test_c068_headers_any_without_keys_matches_nothing(router):
    matches = router("headers", arguments={"x-match": "any"})
    assert not matches()
    assert not matches(headers={"a": 1})


def test_c068_headers_any(router):
    matches = router("headers", arguments={"x-match": "any", "a": 1, "b": 2})
    assert matches(headers={"a": 1, "b": 9})
    assert matches(headers={"b": 2})
    assert not matches(headers={"a": 2, "c": 1})


def test_c069_headers_all_ignores_keys_starting_with_x(router):
    matches = router("headers", arguments={"x-match": "all", "a": 1, "x-b": 2})
    assert matches(headers={"a": 1})


def test_c069_headers_any_ignores_keys_starting_with_x(router):
    matches = router("headers", arguments={"x-match": "any", "a": 1, "x-b": 2})
    assert matches(headers={"a": 1})
    assert not matches(headers={"x-b": 2})


def test_c069_headers_all_with_x(router):
    matches = router("headers", arguments={"x-match": "all-with-x", "a": 1, "x-b": 2})
    assert matches(headers={"a": 1, "x-b": 2})
    assert not matches(headers={"a": 1})


def test_c069_headers_any_with_x(router):
    matches = router("headers", arguments={"x-match": "any-with-x", "a": 1, "x-b": 2})
    assert matches(headers={"x-b": 2})
    assert not matches(headers={"x-match": "any-with-x"})


def test_c070_headers_void_is_a_presence_test(router):
    matches = router("headers", arguments={"a": None})
    assert matches(headers={"a": 1})
    assert matches(headers={"a": "anything"})
    assert not matches(headers={"b": 1})


@pytest.mark.parametrize(
    ("bound", "sent", "is_match"),
    [
        (1, "1", False),
        ("1", 1, False),
        (1, 1, True),
        (70_000, 70_000, True),
        (True, True, True),
        (True, False, False),
        (True, "true", False),
        ("a", "A", False),
        (1.5, 1.5, True),
    ],
)
def test_c070_headers_values_are_equal_within_their_type(router, bound, sent, is_match):
    assert router("headers", arguments={"a": bound})(headers={"a": sent}) is is_match


@pytest.mark.parametrize("bad", ["most", 1])
def test_c071_bad_x_match(channel, names, bad):
    exchange, queue = names.exchange(), names.queue()
    channel.exchange(exchange, "headers")
    channel.declare(queue)
    bind = Queue.Bind(queue=queue, exchange=exchange, arguments={"x-match": bad})
    channel.refused(bind, 406)


def test_c072_alternate_exchange_gets_unroutable_messages(channel, names):
    main, spare, queue = names.exchange(), names.exchange(), names.queue()
    channel.exchange(spare, "fanout")
    channel.exchange(main, arguments={"alternate-exchange": spare})
    channel.declare(queue)
    channel.bind(queue, spare)
    channel.confirm_select()
    channel.publish(main, "nowhere", b"saved", mandatory=True)
    channel.confirmed(1)
    received = channel.get_one(queue)
    assert (received.body, received.method.exchange, received.method.routing_key) == (
        b"saved",
        main,
        "nowhere",
    )


def test_c072_alternate_exchange_gets_only_unroutable_messages(channel, names):
    main, spare = names.exchange(), names.exchange()
    home, spare_home = names.queue(), names.queue()
    channel.exchange(spare, "fanout")
    channel.exchange(main, arguments={"alternate-exchange": spare})
    for queue in (home, spare_home):
        channel.declare(queue)
    channel.bind(home, main, "k")
    channel.bind(spare_home, spare)
    channel.fill_through(main, "k", home, 1)
    assert channel.ready(spare_home) == 0


def test_c072_message_that_the_alternate_cannot_route_is_returned(channel, names):
    main, spare = names.exchange(), names.exchange()
    channel.exchange(spare)
    channel.exchange(main, arguments={"alternate-exchange": spare})
    channel.publish(main, "nowhere", mandatory=True)
    assert channel.returned().method.exchange == main


def test_c072_chain_and_cycle_of_alternates_end(channel, names):
    one, two = names.exchange(), names.exchange()
    channel.exchange(one, arguments={"alternate-exchange": two})
    channel.exchange(two, arguments={"alternate-exchange": one})
    channel.publish(one, "nowhere", mandatory=True)
    channel.returned()


def test_c073_cc_and_bcc_are_further_routing_keys(channel, names):
    queues = [names.queue() for _ in range(3)]
    for queue in queues:
        channel.declare(queue)
    channel.confirm_select()
    headers = {"CC": [queues[1]], "BCC": [queues[2]], "kept": 1}
    channel.publish("", queues[0], b"copy", headers=headers)
    channel.confirmed(1)
    for queue in queues:
        received = channel.get_one(queue)
        assert received.headers == {"CC": [queues[1]], "kept": 1}
        assert received.method.routing_key == queues[0]


def test_c073_same_queue_by_key_and_cc_gets_one_copy(channel, names):
    queue = names.queue()
    channel.declare(queue)
    channel.confirm_select()
    channel.publish("", queue, headers={"CC": [queue, queue]})
    channel.confirmed(1)
    assert channel.drain(queue) == [b"x"]


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_c073_cc_that_is_not_an_array(channel, names, header):
    queue = names.queue()
    channel.declare(queue)
    channel.publish("", queue, headers={header: "not-an-array"})
    close = channel.expect_close(406)
    assert (close.class_id, close.method_id) == (60, 40)


def test_c073_cc_through_an_exchange_binding(channel, names):
    source, inner, queue = names.exchange(), names.exchange(), names.queue()
    channel.exchange(source)
    channel.exchange(inner)
    channel.declare(queue)
    channel.bind(queue, inner, "deep")
    channel.call(Exchange.Bind(destination=inner, source=source, routing_key="deep"))
    channel.publish(source, "nowhere", headers={"CC": ["deep"]})
    channel.wait_ready(queue, 1)
