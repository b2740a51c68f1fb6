"""Publisher confirms leave in order, and wait only for the batch that contains their message."""

import pytest

from leveret.amqp_server.channel import Confirms
from leveret.amqp_server.codec import encode_ack, encode_nack
from leveret.broker import ConfirmWait


@pytest.fixture
def ready():
    return []


@pytest.fixture
def confirms(ready):
    return Confirms(1, lambda: ready.append(True))


def test_messages_that_wait_for_nothing_are_acked_together(confirms, ready):
    assert confirms.accepted(0) is ConfirmWait.NONE
    assert confirms.accepted(0, 2) is ConfirmWait.NONE
    assert len(ready) == 2
    assert confirms.answers() == encode_ack(1, 3, True)
    assert confirms.unconfirmed == 0 and confirms.answers() == b""


def test_each_batch_is_waited_for_once(confirms, ready):
    waits = [confirms.accepted(7), confirms.accepted(7), confirms.accepted(0), confirms.accepted(8)]
    assert waits == [
        ConfirmWait.NEW_BATCH, ConfirmWait.KNOWN_BATCH, ConfirmWait.KNOWN_BATCH,
        ConfirmWait.NEW_BATCH,
    ]  # fmt: skip
    assert not ready and confirms.answers() == b""
    confirms.on_committed(7)
    assert confirms.answers() == encode_ack(1, 3, True)
    confirms.on_committed(8)
    assert confirms.answers() == encode_ack(1, 4, False)


def test_rejected_message_gets_its_own_nack_in_order(confirms, ready):
    confirms.accepted(0)
    confirms.rejected()
    confirms.accepted(7)
    confirms.rejected()
    assert confirms.accepted(0) is ConfirmWait.KNOWN_BATCH
    assert confirms.answers() == encode_ack(1, 1, False) + encode_nack(1, 2, False)
    confirms.on_committed(7)
    answers = encode_ack(1, 3, False) + encode_nack(1, 4, False) + encode_ack(1, 5, False)
    assert confirms.answers() == answers
    assert len(ready) == 3


def test_messages_of_a_failed_batch_are_nacked(confirms, ready):
    confirms.accepted(0)
    confirms.accepted(7, 3)
    confirms.accepted(8)
    confirms.on_failed(7)
    assert confirms.answers() == encode_ack(1, 1, False) + encode_nack(1, 4, True)
    confirms.on_committed(8)
    assert confirms.answers() == encode_ack(1, 5, False)
