"""The checker finds each kind of problem."""

from tests.torture.checker import Ledger, make_body


class TestChecker:
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
