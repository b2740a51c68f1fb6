"""Dead letters built from cached headers equal dead letters built from decoded headers."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from leveret.broker.publishing.x_death import (
    DeathHeaderCache,
    DeathHeaders,
    append_death_headers,
    deaths_of,
    make_dead_letter,
)
from leveret.model.message import Address, Message, decode_properties, encode_properties, scan
from leveret.queues.classic.classic_queue import ClassicQueue, QueueCallbacks
from leveret.queues.port import DeathReason
from leveret.queues.spec import QueueSpec

NOW_MS = 1_700_000_000_999
MAX_BYTES = 131_052
DEATH_HEADERS = ("CC", "x-delivery-count", "-death")
SHORT = st.text(max_size=20).filter(lambda text: not any(name in text for name in DEATH_HEADERS))
VALUES = st.one_of(st.integers(-9, 1 << 40), SHORT, st.booleans(), st.lists(SHORT, max_size=2))
TABLES = st.dictionaries(SHORT, VALUES, max_size=4)
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "content_type": SHORT,
        "content_encoding": SHORT,
        "headers": TABLES,
        "delivery_mode": st.sampled_from([1, 2]),
        "priority": st.integers(0, 255),
        "correlation_id": SHORT,
        "reply_to": st.one_of(SHORT, st.just("amq.rabbitmq.reply-to")),
        "expiration": st.integers(0, 10**6).map(str),
        "message_id": SHORT,
        "timestamp": st.integers(0, 1 << 40),
        "user_id": SHORT,
        "cluster_id": SHORT,
    },
)


def source_queue(name: str = "q", **arguments: Any) -> ClassicQueue:
    callbacks = QueueCallbacks(lambda queue: None, now_ms=lambda: NOW_MS)
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return ClassicQueue(QueueSpec(name, False, arguments=named), 1, callbacks)


def maybe_decoded(
    queue: ClassicQueue, message: Message, reason: DeathReason, now_ms: int
) -> Message | None:
    headers = message.headers()
    deaths = deaths_of(message, headers)
    return make_dead_letter(queue, message, reason, deaths, headers, now_ms, MAX_BYTES)


def decoded(queue: ClassicQueue, message: Message, reason: DeathReason, now_ms: int) -> Message:
    dead = maybe_decoded(queue, message, reason, now_ms)
    assert dead is not None
    return dead


@given(PROPERTIES, st.sampled_from([None, "dlq"]), st.sampled_from(list(DeathReason)))
def test_cached_and_decoded_headers_make_the_same_message(
    properties: dict[str, Any], key: str | None, reason: DeathReason
) -> None:
    own_key = {} if key is None else {"dead_letter_routing_key": key}
    queue = source_queue(dead_letter_exchange="dlx", **own_key)
    message = Message.build(Address.of("x", "k"), encode_properties(properties), b"body")
    message.origin = 7
    cached = DeathHeaderCache().maybe_get(queue, message, reason, NOW_MS, 1)
    assert cached is not None
    from_cache = append_death_headers(message, *cached)
    from_decoding = decoded(queue, message, reason, NOW_MS)
    assert decode_properties(from_cache.properties) == decode_properties(from_decoding.properties)
    assert from_cache.scan == scan(from_cache.properties)
    assert from_decoding.scan == scan(from_decoding.properties)
    again = decoded(queue, from_decoding, reason, NOW_MS)
    assert again.scan == scan(again.properties)
    assert again.headers()["x-death"][0]["count"] == 2
    assert (from_cache.address, from_cache.body) == (from_decoding.address, from_decoding.body)
    assert from_cache.content(1, 4096) == Message.build(
        from_cache.address, from_cache.properties, b"body"
    ).content(1, 4096)


@given(PROPERTIES, st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(list(DeathReason)))))
def test_cached_and_decoded_headers_agree_on_many_deaths(
    properties: dict[str, Any], deaths: list[tuple[str, DeathReason]]
) -> None:
    from_cache = Message.build(Address.of("x", "k"), encode_properties(properties), b"body")
    from_decoding, cache = from_cache, DeathHeaderCache()
    from_cache.origin = 7
    for count, (name, reason) in enumerate(deaths):
        queue = source_queue(name, dead_letter_exchange=f"to {count % 2}")
        now_ms = NOW_MS + 700 * count
        cached = cache.maybe_get(queue, from_cache, reason, now_ms, 1)
        assert cached is not None
        assert cached[0].deaths == deaths_of(from_cache, from_cache.headers())
        from_cache = append_death_headers(from_cache, *cached)
        from_decoding = decoded(queue, from_decoding, reason, now_ms)
        assert decode_properties(from_cache.properties) == decode_properties(
            from_decoding.properties
        )
        assert from_cache.scan == scan(from_cache.properties)
        assert from_cache.address == from_decoding.address


def message_with(**headers: Any) -> Message:
    return Message.build(Address.of("", "q"), encode_properties({"headers": headers}), b"")


def test_messages_with_copy_or_foreign_death_headers_are_not_cached() -> None:
    queue, cache = source_queue(dead_letter_exchange=""), DeathHeaderCache()
    for name in ("CC", "BCC", "x-death", "x-first-death-queue"):
        for origin in (0, 7):
            message = message_with(**{name: [["a"]]})
            message.origin = origin
            assert cache.maybe_get(queue, message, DeathReason.EXPIRED, NOW_MS, 1) is None


def test_encoded_headers_are_shared_within_a_second_and_version() -> None:
    queue, cache = source_queue(dead_letter_exchange=""), DeathHeaderCache()

    def cached_headers(
        message: Message, reason: DeathReason, now_ms: int, version: int
    ) -> DeathHeaders:
        cached = cache.maybe_get(queue, message, reason, now_ms, version)
        assert cached is not None
        return cached[0]

    first = cached_headers(message_with(n=1), DeathReason.EXPIRED, NOW_MS, 1)
    assert cached_headers(message_with(n=2), DeathReason.EXPIRED, NOW_MS, 1) is first
    assert cached_headers(message_with(n=2), DeathReason.REJECTED, NOW_MS, 1) is not first
    assert cached_headers(message_with(n=1), DeathReason.EXPIRED, NOW_MS, 2) is not first
    assert cached_headers(message_with(n=1), DeathReason.EXPIRED, NOW_MS + 1, 2) is not first


def test_headers_of_many_deaths_with_many_copies_fit_a_frame() -> None:
    """If every death named all keys, 115 KB would become 12 MB of headers after 100 deaths."""
    message = message_with(CC=[f"{number:0>120}" for number in range(900)])
    message.origin = 7
    for count in range(300):
        queue = source_queue(f"queue {count}", dead_letter_exchange="")
        message = decoded(queue, message, DeathReason.EXPIRED, NOW_MS)
        assert len(message.properties) <= MAX_BYTES
        headers = message.headers()
        deaths = headers["x-death"]
        assert [death["queue"] for death in deaths[:2]] == [
            f"queue {number}" for number in (count, count - 1)[: count + 1]
        ]
        assert len(deaths) == count + 1 and len(headers["CC"]) == 900
        assert headers["x-first-death-queue"] == "queue 0"


def test_full_headers_survive_the_first_death_only() -> None:
    message = message_with(filling="x" * (MAX_BYTES - 30))
    message.origin = 7
    queue = source_queue(dead_letter_exchange="")
    dead = decoded(queue, message, DeathReason.EXPIRED, NOW_MS)
    assert dead.headers() == message.headers() and len(dead.properties) <= MAX_BYTES
    assert maybe_decoded(queue, dead, DeathReason.EXPIRED, NOW_MS) is None


def test_message_whose_deaths_do_not_fit_is_dropped() -> None:
    message = message_with(filling="x" * (MAX_BYTES - 2_000))
    message.origin = 7
    dead: Message | None = message
    deaths = 0
    while dead is not None:
        queue = source_queue(f"queue {deaths}", dead_letter_exchange="")
        dead = maybe_decoded(queue, dead, DeathReason.EXPIRED, NOW_MS)
        assert dead is None or len(dead.properties) <= MAX_BYTES
        deaths += 1
    assert 10 < deaths < 60
