"""The programs in examples/ run, and show what they say they show."""

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
SECONDS = 120
pytestmark = pytest.mark.timeout(600)

SHOWS = {
    "activity_tracking": [
        "partitions per member: [2, 2]",
        "views: {'cart': 40, 'home': 40, 'search': 40}",
        "40 users went from home to search to cart",
    ],
    "claim_check": [
        "message of 5 octets, payload of 5",
        "message of 95 octets, payload of 30000000",
    ],
    "delayed_retry": [
        "easy: done in attempt 1",
        "shy: attempt 1 failed: not today",
        "hopeless: attempt 1 failed: not today",
        "shy: done in attempt 2",
        "hopeless: attempt 2 failed: not today",
        "hopeless: attempt 3 failed: not today",
        "hopeless: given up, rejected",
    ],
    "event_sourcing": ["{'ann': 70, 'bob': 50, 'eve': 10}", "{'ann': 70, 'bob': 55}"],
    "exactly_once": [f"invoice for order {number}" for number in (1, 2, 3)],
    "log_aggregation": [
        "alert: mail: no route to ann@example.org",
        "INFO order 4711",
        "WARNING order 4711 waits",
    ],
}
SERVERS = {"celery_app", "fastapi_app"}
ELSEWHERE = {"spark_windowed_count"}  # tests/spark/test_real_broker.py


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
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", SHOWS)
def test_shows_what_it_says(name, environment):
    shown = run(name, environment)
    if name == "delayed_retry":  # jobs run side by side; each is in order
        assert sorted(shown) == sorted(SHOWS[name])
    else:
        assert shown == SHOWS[name]


def test_celery(environment):
    quiet = {**environment, "PYTHONWARNINGS": "default"}  # Celery warns of itself
    worker = subprocess.Popen(
        [
            *(sys.executable, "-m", "celery", "-A", "celery_app", "worker"),
            *("--pool=threads", "--concurrency=2", "--loglevel=ERROR"),
        ],
        cwd=EXAMPLES,
        env=quiet,
    )
    try:
        assert run("celery_app", quiet) == [
            "1 + 2 = 3",
            "(1 + 2) + 4 = 7",
            "doubles: [0, 2, 4, 6, 8], all: 20",
        ]
    finally:
        worker.terminate()
        worker.wait(SECONDS)


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
    assert programs == set(SHOWS) | SERVERS | ELSEWHERE
    listed = re.findall(r"^\| \[(\w+)\.py\]", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert set(listed) == programs
