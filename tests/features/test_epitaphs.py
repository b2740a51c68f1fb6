"""Dead letters that are made without decoding are those that would be made with care."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from leveret.broker.epitaphs import Epitaph, Epitaphs, dead_message, deaths_of, engraved
from leveret.model.message import Address, Message
from leveret.model.properties import decode_properties, encode_properties, scan
from queues import ClassicQueue, QueueSpec
from queues.port import DeathReason, Upward

NOW_MS = 1_700_000_000_999
MOST_OCTETS = 131_052
SIGNS = ("CC", "x-delivery-count", "-death")
SHORT = st.text(max_size=20).filter(lambda text: not any(sign in text for sign in SIGNS))
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


def dying_in(name: str = "q", **arguments: Any) -> ClassicQueue:
    nothing = Upward(lambda queue: None, now_ms=lambda: NOW_MS)
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return ClassicQueue(QueueSpec(name, False, arguments=named), 1, nothing)


def maybe_with_care(
    queue: ClassicQueue, message: Message, reason: DeathReason, now_ms: int
) -> Message | None:
    headers = message.headers()
    deaths = deaths_of(message, headers)
    return dead_message(queue, message, reason, deaths, headers, now_ms, MOST_OCTETS)


def with_care(queue: ClassicQueue, message: Message, reason: DeathReason, now_ms: int) -> Message:
    dead = maybe_with_care(queue, message, reason, now_ms)
    assert dead is not None
    return dead


@given(PROPERTIES, st.sampled_from([None, "grave"]), st.sampled_from(list(DeathReason)))
def test_both_ways_make_the_same_message(
    properties: dict[str, Any], key: str | None, reason: DeathReason
) -> None:
    own_key = {} if key is None else {"dead_letter_routing_key": key}
    queue = dying_in(dead_letter_exchange="dlx", **own_key)
    message = Message.build(Address.of("x", "k"), encode_properties(properties), b"body")
    message.origin = 7
    found = Epitaphs().of(queue, message, reason, NOW_MS, 1)
    assert found is not None
    quick = engraved(message, *found)
    careful = with_care(queue, message, reason, NOW_MS)
    assert decode_properties(quick.properties) == decode_properties(careful.properties)
    assert quick.scan == scan(quick.properties)
    assert careful.scan == scan(careful.properties)
    again = with_care(queue, careful, reason, NOW_MS)
    assert again.scan == scan(again.properties)
    assert again.headers()["x-death"][0]["count"] == 2
    assert (quick.address, quick.body) == (careful.address, careful.body)
    assert quick.content(1, 4096) == Message.build(
        quick.address, quick.properties, b"body"
    ).content(1, 4096)


@given(PROPERTIES, st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(list(DeathReason)))))
def test_both_ways_tell_the_same_of_many_deaths(
    properties: dict[str, Any], deaths: list[tuple[str, DeathReason]]
) -> None:
    quick = Message.build(Address.of("x", "k"), encode_properties(properties), b"body")
    careful, epitaphs = quick, Epitaphs()
    quick.origin = 7
    for count, (name, reason) in enumerate(deaths):
        queue = dying_in(name, dead_letter_exchange=f"to {count % 2}")
        now_ms = NOW_MS + 700 * count
        found = epitaphs.of(queue, quick, reason, now_ms, 1)
        assert found is not None
        assert found[0].deaths == deaths_of(quick, quick.headers())
        quick = engraved(quick, *found)
        careful = with_care(queue, careful, reason, now_ms)
        assert decode_properties(quick.properties) == decode_properties(careful.properties)
        assert quick.scan == scan(quick.properties)
        assert quick.address == careful.address


def message_with(**headers: Any) -> Message:
    return Message.build(Address.of("", "q"), encode_properties({"headers": headers}), b"")


def test_whoever_tells_of_copies_or_deaths_is_taken_apart() -> None:
    queue, epitaphs = dying_in(dead_letter_exchange=""), Epitaphs()
    for name in ("CC", "BCC", "x-death", "x-first-death-queue"):
        for origin in (0, 7):
            message = message_with(**{name: [["a"]]})
            message.origin = origin
            assert epitaphs.of(queue, message, DeathReason.EXPIRED, NOW_MS, 1) is None


def test_fields_are_shared_within_a_second_and_a_topology() -> None:
    queue, epitaphs = dying_in(dead_letter_exchange=""), Epitaphs()

    def of(message: Message, reason: DeathReason, now_ms: int, version: int) -> Epitaph:
        found = epitaphs.of(queue, message, reason, now_ms, version)
        assert found is not None
        return found[0]

    first = of(message_with(n=1), DeathReason.EXPIRED, NOW_MS, 1)
    assert of(message_with(n=2), DeathReason.EXPIRED, NOW_MS, 1) is first
    assert of(message_with(n=2), DeathReason.REJECTED, NOW_MS, 1) is not first
    assert of(message_with(n=1), DeathReason.EXPIRED, NOW_MS, 2) is not first
    assert of(message_with(n=1), DeathReason.EXPIRED, NOW_MS + 1, 2) is not first


def test_what_many_deaths_say_of_many_copies_fits_a_frame() -> None:
    """Every death told all keys: a message of 115 KB had 12 MB of headers after a hundred."""
    message = message_with(CC=[f"{number:0>120}" for number in range(900)])
    message.origin = 7
    for count in range(300):
        queue = dying_in(f"queue {count}", dead_letter_exchange="")
        message = with_care(queue, message, DeathReason.EXPIRED, NOW_MS)
        assert len(message.properties) <= MOST_OCTETS
        headers = message.headers()
        deaths = headers["x-death"]
        assert [death["queue"] for death in deaths[:2]] == [
            f"queue {number}" for number in (count, count - 1)[: count + 1]
        ]
        assert len(deaths) == count + 1 and len(headers["CC"]) == 900
        assert headers["x-first-death-queue"] == "queue 0"


def test_full_headers_survive_a_first_death_and_go_round_no_more() -> None:
    message = message_with(filling="x" * (MOST_OCTETS - 30))
    message.origin = 7
    queue = dying_in(dead_letter_exchange="")
    dead = with_care(queue, message, DeathReason.EXPIRED, NOW_MS)
    assert dead.headers() == message.headers() and len(dead.properties) <= MOST_OCTETS
    assert maybe_with_care(queue, dead, DeathReason.EXPIRED, NOW_MS) is None


def test_deaths_that_fit_in_no_form_are_the_end() -> None:
    message = message_with(filling="x" * (MOST_OCTETS - 2_000))
    message.origin = 7
    dead: Message | None = message
    lives = 0
    while dead is not None:
        queue = dying_in(f"queue {lives}", dead_letter_exchange="")
        dead = maybe_with_care(queue, dead, DeathReason.EXPIRED, NOW_MS)
        assert dead is None or len(dead.properties) <= MOST_OCTETS
        lives += 1
    assert 10 < lives < 60
