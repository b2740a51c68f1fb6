"""The short forms, part of every test run. `make torture` runs the long ones."""

import pytest

from tests.torture.checker import Ledger, make_body
from tests.torture.crashes import kill_under_load


@pytest.mark.timeout(300)
async def test_r01_nothing_confirmed_is_lost_under_kill_9(tmp_path):
    report = await kill_under_load(tmp_path, cycles=12, confirmed=30_000, seed=20261116)
    print(report)
    assert report.verdict.is_clean, str(report.verdict)
    assert report.verdict.returned_acked == 0
    assert report.verdict.confirmed >= 30_000


class TestChecker:
    """The checker must be able to find what it looks for."""

    def sent(self, *confirmed):
        ledger = Ledger()
        for _ in range(3):
            ledger.will_send("q", 1)
        for sequence in confirmed:
            ledger.was_confirmed("q", 1, sequence)
        return ledger

    def deliver(self, ledger, *sequences, redelivered=False):
        for sequence in sequences:
            ledger.was_delivered("q", make_body(1, sequence, 64), redelivered)

    def test_lost(self):
        ledger = self.sent(1, 2)
        self.deliver(ledger, 1)
        assert ledger.verdict().lost == 1

    def test_phantom_never_sent_or_damaged(self):
        ledger = self.sent()
        self.deliver(ledger, 9)
        ledger.was_delivered("q", make_body(1, 1, 64)[:-1] + b"?", False)
        assert ledger.verdict().phantom == 2

    def test_unmarked_duplicate(self):
        ledger = self.sent(1)
        self.deliver(ledger, 1)
        self.deliver(ledger, 1, redelivered=True)
        assert ledger.verdict().is_clean
        self.deliver(ledger, 1)
        assert ledger.verdict().duplicate == 1

    def test_reordered(self):
        ledger = self.sent(1, 2)
        self.deliver(ledger, 2, 1)
        assert ledger.verdict().reordered == 1

    def test_recovered_is_allowed(self):
        ledger = self.sent()
        self.deliver(ledger, 1)
        verdict = ledger.verdict()
        assert (verdict.recovered, verdict.is_clean) == (1, True)
