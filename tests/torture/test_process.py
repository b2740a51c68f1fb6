"""The log of a broker is searched completely, and reading it does not disturb the writer."""

import os
import tempfile

import pytest

from tests.torture.process import FORBIDDEN_LOG_TEXTS, find_forbidden_text, read_tail

PORTION = 64


@pytest.fixture
def log():
    with tempfile.TemporaryFile() as file:
        yield file


def write(log, text):
    os.write(log.fileno(), text.encode())


@pytest.mark.parametrize("words", FORBIDDEN_LOG_TEXTS)
def test_forbidden_text_is_found_across_portions(log, words):
    for before in range(2 * PORTION):
        os.ftruncate(log.fileno(), 0)
        os.lseek(log.fileno(), 0, os.SEEK_SET)
        write(log, "." * before + words + "." * 5 * PORTION)
        assert words in find_forbidden_text(log.fileno(), PORTION)


def test_text_around_a_forbidden_text_is_returned(log):
    write(log, "x" * 300_000 + "asked for this: Traceback of that" + "y" * 300_000)
    assert "asked for this: Traceback of that" in find_forbidden_text(log.fileno())


def test_log_without_forbidden_text_gives_an_empty_string(log):
    write(log, "all is well, Trace" + "." * 300_000 + "back")
    assert find_forbidden_text(log.fileno()) == ""


def test_reading_does_not_move_the_position_of_the_writer(log):
    write(log, "first ")
    assert (read_tail(log.fileno(), 3), find_forbidden_text(log.fileno())) == ("st ", "")
    write(log, "second")
    assert read_tail(log.fileno(), 100) == "first second"
