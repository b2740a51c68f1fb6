"""R-37 in a short form for every test run.

Trimmed: a few random sessions on Leveret and RabbitMQ in place of a hundred. The cases themselves
(tests/semantics) and the models run on Leveret in every test run, on RabbitMQ in `make torture`.
"""

import pytest

from tests.support.brokers import target_of
from tests.torture.outcome import silent
from tests.torture.security.conformance import compare_all, rabbitmq

SEED, SESSIONS = 20_261_116, 4
pytestmark = pytest.mark.timeout(600)


async def test_r37_random_sessions_end_the_same_on_rabbitmq(tmp_path):
    with rabbitmq() as url:
        seeds = range(SEED, SEED + SESSIONS)
        assert await compare_all(tmp_path, seeds, target_of(url), silent) == []
