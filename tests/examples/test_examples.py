"""The programs in examples/ run and print what they should."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys

import httpx
import pytest

from leveret.testing import LeveretBroker
from tests.support.brokers import ROOT

EXAMPLES = ROOT / "examples"
TIMEOUT_SECONDS = 120
pytestmark = pytest.mark.timeout(600)

OUTPUTS = {
    "activity_tracking": [
        "partitions per member: [2, 2]",
        "views: {'cart': 40, 'home': 40, 'search': 40}",
        "40 users went from home to search to cart",
    ],
    "claim_check": [
        "message of 5 bytes, payload of 5 bytes",
        "message of 95 bytes, payload of 30000000 bytes",
    ],
    "delayed_retry": [
        "easy: done in attempt 1",
        "flaky: attempt 1 failed: service unavailable",
        "broken: attempt 1 failed: service unavailable",
        "flaky: done in attempt 2",
        "broken: attempt 2 failed: service unavailable",
        "broken: attempt 3 failed: service unavailable",
        "broken: given up, rejected",
    ],
    "event_sourcing": ["{'ann': 70, 'bob': 50, 'eve': 10}", "{'ann': 70, 'bob': 55}"],
    "exactly_once": [f"invoice for order {number}" for number in (1, 2, 3)],
    "log_aggregation": [
        "alert: mail: no route to ann@example.org",
        "INFO order 4711",
        "WARNING order 4711 waits",
    ],
    "stateful_consumer": [
        "first: assigned [0, 1, 2, 3]",
        "first: revoked [2, 3]",
        "second: assigned [2, 3]",
        "second: assigned [0, 1]",
        "20 users, visits of each: [3]",
    ],
}
SERVERS = {"celery_app", "fastapi_app"}
TESTED_ELSEWHERE = {"spark_windowed_count"}  # tests/spark/test_real_broker.py


@pytest.fixture(scope="module")
def broker():
    with LeveretBroker() as broker:
        yield broker


@pytest.fixture
def environment(broker):
    return {**os.environ, "AMQP_URL": broker.url, "PYTHONWARNINGS": "error"}


def run(name, environment):
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"],
        env=environment,
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", OUTPUTS)
def test_example_prints_the_expected_output(name, environment):
    output = run(name, environment)
    if name == "delayed_retry":  # jobs run concurrently; each one is in order
        assert sorted(output) == sorted(OUTPUTS[name])
    else:
        assert output == OUTPUTS[name]


def test_celery(environment):
    quiet = {**environment, "PYTHONWARNINGS": "default"}  # Celery itself causes warnings
    expected = ["1 + 2 = 3", "(1 + 2) + 4 = 7", "doubles: [0, 2, 4, 6, 8], all: 20"]
    output = run("celery_app", quiet)  # the worker prints lines of its own
    assert [line for line in output if line in expected] == expected


async def test_fastapi(broker, monkeypatch):
    monkeypatch.setenv("AMQP_URL", broker.url)
    app = runpy.run_path(str(EXAMPLES / "fastapi_app.py"))["app"]
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
    ):
        assert (await client.post("/orders/7")).status_code == 202
        await broker.wait_acked_async("web-orders", 1)
        assert (await client.get("/orders/7")).json() == {"number": 7, "state": "shipped"}
        assert (await client.get("/orders/8")).status_code == 404


def test_every_example_is_listed_and_run():
    programs = {path.stem for path in EXAMPLES.glob("*.py")}
    assert programs == set(OUTPUTS) | SERVERS | TESTED_ELSEWHERE
    listed = re.findall(r"^\| \[(\w+)\.py\]", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert set(listed) == programs
