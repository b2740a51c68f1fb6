"""Publisher confirms of one channel: every answer leaves in order, as few frames as possible.

A message that waits for disk holds back the confirms behind it; those that wait for nothing join
the last group. One ledger, so an ack never overtakes and `multiple` never covers an open one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from amqp_server.codec import encode_ack, encode_nack


class Confirms:
    """`register(mark)` asks to be told, through `release` or `fail`, when a batch is decided."""

    def __init__(self, channel: int, register: Callable[[int], None]) -> None:
        self._channel = channel
        self._register = register
        self._open: deque[tuple[int, int, bool]] = deque()  # mark, last number, accepted
        self._answers: list[bytes] = []
        self.settled = 0  # up to this number an answer has been made
        self._ready = 0  # up to this number an ack may be made
        self.published = 0

    @property
    def unconfirmed(self) -> int:
        return self.published - self.settled

    def accepted(self, mark: int, count: int = 1) -> bool:
        """The next `count` publishes are taken; they wait for batch `mark` (0: for nothing).

        True when there is something to send now.
        """
        number = self.published = self.published + count
        waiting = self._open
        if waiting:
            last = waiting[-1]
            if mark <= last[0] and last[2]:
                waiting[-1] = (last[0], number, True)
            else:
                self._wait(max(mark, last[0]), number, True)
            return False
        if mark:
            self._wait(mark, number, True)
            return False
        self._ready = number
        return True

    def refused(self) -> bool:
        """The next publish is not taken: it gets a nack of its own."""
        number = self.published = self.published + 1
        if self._open:
            self._wait(self._open[-1][0], number, False)
            return False
        self._make_ack()
        self._nack(number)
        return True

    def _wait(self, mark: int, number: int, accepted: bool) -> None:
        is_new = not self._open or self._open[-1][0] < mark
        self._open.append((mark, number, accepted))
        if is_new:
            self._register(mark)  # answers at once where the batch is decided already

    def release(self, mark: int) -> None:
        """Everything up to batch `mark` is on disk."""
        while self._open and self._open[0][0] <= mark:
            _, number, accepted = self._open.popleft()
            if accepted:
                self._ready = number
            else:
                self._make_ack()
                self._nack(number)

    def fail(self, mark: int) -> None:
        """What waited for batch `mark` is not on disk and never will be."""
        self._make_ack()
        while self._open and self._open[0][0] <= mark:
            _, number, _ = self._open.popleft()
            multiple = number - self.settled > 1
            self._answers.append(encode_nack(self._channel, number, multiple))
            self.settled = self._ready = number

    def _nack(self, number: int) -> None:
        self._answers.append(encode_nack(self._channel, number, False))
        self.settled = self._ready = number

    def _make_ack(self) -> None:
        if self._ready > self.settled:
            multiple = self._ready - self.settled > 1
            self._answers.append(encode_ack(self._channel, self._ready, multiple))
            self.settled = self._ready

    def answers(self) -> bytes:
        """What is to be sent now."""
        self._make_ack()
        answers, self._answers = self._answers, []
        return b"".join(answers)
