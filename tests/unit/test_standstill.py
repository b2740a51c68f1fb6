"""Memory that is low because of what has not come whole: who is closed, and when."""

from leveret.broker.standstill import PATIENCE_SECONDS, Standstill


class Keeper:
    def __init__(self, kept):
        self.kept = kept
        self.told = ""

    def close(self, reason):
        self.kept, self.told = 0, reason


def look(standstill, keepers, excess, *times):
    for now in times:
        standstill.look(keepers, excess, now)
    return [bool(one.told) for one in keepers]


LATER = 1 + PATIENCE_SECONDS


def test_who_keeps_most_is_closed_after_a_while():
    keepers = [Keeper(10), Keeper(30), Keeper(20)]
    standstill = Standstill()
    assert look(standstill, keepers, 50, 1, LATER - 0.1) == [False, False, False]
    assert look(standstill, keepers, 50, LATER) == [False, True, False]
    assert "30 octets" in keepers[1].told


def test_others_follow_while_it_is_not_enough():
    keepers = [Keeper(10), Keeper(30), Keeper(20)]
    standstill = Standstill()
    look(standstill, keepers, 50, 1, LATER)
    assert look(standstill, keepers, 20, LATER) == [False, True, True]
    assert look(standstill, keepers, 0, LATER) == [False, True, True]


def test_nobody_is_closed_for_what_lies_in_queues():
    assert look(Standstill(), [Keeper(10)], 11, 1, LATER, 2 * LATER) == [False]
    assert look(Standstill(), [], 11, 1, LATER, 2 * LATER) == []


def test_time_counts_from_when_it_began():
    keepers = [Keeper(10)]
    standstill = Standstill()
    assert look(standstill, keepers, 5, 1) == look(standstill, keepers, 0, 2) == [False]
    assert look(standstill, keepers, 5, LATER, LATER + 1) == [False]
    assert look(standstill, keepers, 11, LATER + 2) == [False]
    assert look(standstill, keepers, 5, 2 * LATER, 3 * LATER - 2) == [False]
    assert look(standstill, keepers, 5, 3 * LATER) == [True]
