"""R-37: the semantics suite on Leveret and RabbitMQ, walks of models, random sessions on both.

RABBITMQ_URL names the RabbitMQ (a virtual host without other users; its management API listens
10,000 ports above); without it one is started on free ports. Cases that fail there are run again,
because on a busy machine it drops messages that a consumer would have taken in time (C-137).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from benchmarks import brokers
from leveret.testing.ports import free_port
from tests.semantics.differential import compare
from tests.support.brokers import Target, target_of
from tests.support.rabbitmq import started_rabbitmq
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.suites import Suite

TITLE = "conformance"
CASES = "tests/semantics"
LEVERET_TESTS = (
    CASES,
    "tests/integration/test_pika.py",
    "tests/integration/test_aio_pika.py",
    "tests/integration/test_amqpstorm.py",
    "tests/integration/test_kombu.py",
    "tests/unit/queues/test_classic_queue_model.py",
    "tests/unit/queues/test_queue_features_model.py",
)
WALKS_PER_SEED = 50
STEPS = 80
TRIES = 3
MANAGEMENT = 10_000


async def check_conformance(
    directory: Path, walks: int, seed: int, progress: Progress = silent
) -> Outcome:
    suite = Suite("R-37", TITLE, LEVERET_TESTS, "{cases}")
    ours = await suite(directory / "ours", walks, seed, progress)
    with rabbitmq() as url:
        tests = (CASES, f"--broker={url}")
        suite = Suite("R-37", TITLE, tests, "{cases}", TRIES)
        theirs = await suite(directory / "theirs", 1, seed, progress)
        seeds = range(seed, seed + max(2, walks // WALKS_PER_SEED))
        differing = await compare_all(directory, seeds, target_of(url), progress)
    problems = [*ours.problems, *(f"RabbitMQ: {item}" for item in theirs.problems)]
    problems += [f"seed {item} ended differently" for item in differing]
    figures = (
        f"{ours.figures} cases on Leveret (also with pika, aio-pika, AMQPStorm and kombu, and "
        f"{walks} walks of 40 steps of each model of a queue), {theirs.figures} on RabbitMQ 3.10; "
        f"{len(seeds)} random sessions of {STEPS} methods on both: {len(differing)} "
        f"undocumented differences"
    )
    return Outcome("R-37", TITLE, figures, tuple(problems))


@contextlib.contextmanager
def rabbitmq() -> Iterator[str]:
    named = os.environ.get("RABBITMQ_URL")
    if named:
        yield named
        return
    port = _free_port_pair()
    with started_rabbitmq(port, port + MANAGEMENT):
        yield f"amqp://guest:guest@{brokers.HOST}:{port}/%2F"


def _free_port_pair() -> int:
    """A free port whose port for the management API, a fixed distance above, is free as well."""
    while True:
        port = free_port()
        with contextlib.suppress(OSError, OverflowError), socket.socket() as probe:
            probe.bind((brokers.HOST, port + MANAGEMENT))
            return port


async def compare_all(
    directory: Path, seeds: range, other: Target, progress: Progress
) -> list[int]:
    """The seeds on which the two disagreed three times: one broker may have been slow."""
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
