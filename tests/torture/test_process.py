"""What a broker has said is searched from its first octet to its last, and left as it is."""

import os
import tempfile

import pytest

from tests.torture.process import ALARMING, alarm_in, end_of

PORTION = 64


@pytest.fixture
def log():
    with tempfile.TemporaryFile() as file:
        yield file


def write(log, text):
    os.write(log.fileno(), text.encode())


@pytest.mark.parametrize("words", ALARMING)
def test_alarming_words_are_found_wherever_portions_end(log, words):
    for before in range(2 * PORTION):
        os.ftruncate(log.fileno(), 0)
        os.lseek(log.fileno(), 0, os.SEEK_SET)
        write(log, "." * before + words + "." * 5 * PORTION)
        assert words in alarm_in(log.fileno(), PORTION)


def test_what_stands_before_and_after_is_told(log):
    write(log, "x" * 300_000 + "asked for this: Traceback of that" + "y" * 300_000)
    assert "asked for this: Traceback of that" in alarm_in(log.fileno())


def test_nothing_alarming_is_nothing(log):
    write(log, "all is well, Trace" + "." * 300_000 + "back")
    assert alarm_in(log.fileno()) == ""


def test_reading_does_not_move_the_one_who_writes(log):
    write(log, "first ")
    assert (end_of(log.fileno(), 3), alarm_in(log.fileno())) == ("st ", "")
    write(log, "second")
    assert end_of(log.fileno(), 100) == "first second"
