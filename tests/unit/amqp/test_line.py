"""A connection is read again only when no reason against it is left."""

from typing import Any

from amqp_server.line import Deaf, Listening


class Line:
    def __init__(self):
        self.reads = True

    def stop_reading(self):
        self.reads = False

    def go_on_reading(self):
        self.reads = True


def test_reading_goes_on_with_the_last_reason():
    line: Any = Line()
    listening = Listening(line)
    listening.stop(Deaf.ALARM)
    listening.stop(Deaf.ANSWERS_UNREAD)
    listening.go_on(Deaf.ANSWERS_UNREAD)
    assert not line.reads
    listening.go_on(Deaf.ALARM)
    assert line.reads


def test_a_reason_that_never_held_wakes_nobody():
    line: Any = Line()
    line.reads = False
    Listening(line).go_on(Deaf.ALARM)
    assert not line.reads
