"""R-37: the cases of the suite on Leveret and RabbitMQ, walks of models, random sessions on both.

RabbitMQ is the one that RABBITMQ_URL names (a virtual host that nobody else uses; its management
API is 10,000 ports above), or one that is started on free ports. What fails there is tried again:
on a busy machine it drops what a consumer would have taken in time (C-137).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from benchmarks import brokers
from tests.http.manage.rabbitmq import started_rabbitmq
from tests.semantics.differential import compare
from tests.support.brokers import Target, target_of
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.suites import Suite

TITLE = "conformance"
CASES = "tests/semantics"
OURS = (
    CASES,
    "tests/integration/test_pika.py",
    "tests/integration/test_aio_pika.py",
    "tests/integration/test_amqpstorm.py",
    "tests/integration/test_kombu.py",
    "tests/unit/holding/test_classic_model.py",
    "tests/unit/holding/test_features_model.py",
)
WALKS_A_SEED = 50
STEPS = 80
TRIES = 3
MANAGEMENT = 10_000


async def conform(directory: Path, walks: int, seed: int, progress: Progress = silent) -> Outcome:
    suite = Suite("R-37", TITLE, OURS, "{cases}")
    ours = await suite(directory / "ours", walks, seed, progress)
    with rabbitmq() as url:
        tests = (CASES, f"--broker={url}")
        suite = Suite("R-37", TITLE, tests, "{cases}", TRIES)
        theirs = await suite(directory / "theirs", 1, seed, progress)
        seeds = range(seed, seed + max(2, walks // WALKS_A_SEED))
        differing = await compare_all(directory, seeds, target_of(url), progress)
    problems = [*ours.problems, *(f"RabbitMQ: {one}" for one in theirs.problems)]
    problems += [f"seed {one} ended otherwise" for one in differing]
    figures = (
        f"{ours.figures} cases on Leveret (also with pika, aio-pika, AMQPStorm and kombu, and "
        f"{walks} walks of 40 steps of each model of a queue), {theirs.figures} on RabbitMQ 3.10; "
        f"{len(seeds)} random sessions of {STEPS} methods on both: {len(differing)} "
        f"differences that are not named"
    )
    return Outcome("R-37", TITLE, figures, tuple(problems))


@contextlib.contextmanager
def rabbitmq() -> Iterator[str]:
    named = os.environ.get("RABBITMQ_URL")
    if named:
        yield named
        return
    port = _port_with_another()
    with started_rabbitmq(port, port + MANAGEMENT):
        yield f"amqp://guest:guest@{brokers.HOST}:{port}/%2F"


def _port_with_another() -> int:
    """A free one, as is that of the management API, which the cases look for so far above it."""
    while True:
        port = brokers.free_port()
        with contextlib.suppress(OSError, OverflowError), socket.socket() as probe:
            probe.bind((brokers.HOST, port + MANAGEMENT))
            return port


async def compare_all(
    directory: Path, seeds: range, other: Target, progress: Progress
) -> list[int]:
    """The seeds on which the two did not agree, thrice: one may have been kept waiting."""
    broker = BrokerProcess(directory / "differential", "--memory")
    await broker.start()
    differing = []
    ours = Target(*broker.address)
    for number, seed in enumerate(seeds):
        for _ in range(TRIES):
            if await asyncio.to_thread(compare, seed, STEPS, ours, other):
                break
        else:
            differing.append(seed)
        progress(number + 1, len(seeds))
    await broker.stop()
    return differing
