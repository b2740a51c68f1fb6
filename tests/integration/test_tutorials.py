"""The seven lessons in examples/tutorials work as described; each side runs as a process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.brokers import ROOT

LESSONS = ROOT / "examples" / "tutorials"
TIMEOUT_SECONDS = 60


@pytest.fixture
def environment(broker):
    return {**os.environ, "AMQP_URL": broker.url}


@pytest.fixture
def run(environment):
    """Run one side of a lesson until it ends, and return its lines of output."""

    def run(lesson, *arguments):
        result = subprocess.run(
            [sys.executable, LESSONS / f"{lesson}.py", *arguments],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )
        return result.stdout.splitlines()

    return run


@pytest.fixture
def start(environment):
    """Start the receiving side of a lesson, and wait until its declarations are done."""
    processes = []

    def start(lesson, *arguments):
        process = subprocess.Popen(
            [sys.executable, LESSONS / f"{lesson}.py", *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline(), "ended without output"
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            process.terminate()
        process.communicate()


def lines(process):
    """The output of the receiving side, which ends by itself."""
    output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 0
    return output.splitlines()


def test_hello_world(run, start):
    receiver = start("t1_hello_world", "receive", "--count", "2")
    assert run("t1_hello_world", "send") == ["sent: Hello, burrow"]
    run("t1_hello_world", "send", "again")
    assert lines(receiver) == ["received: Hello, burrow", "received: again"]


def test_work_queue(run, start):
    workers = [start("t2_work_queue", "work", "--count", "2") for _ in range(2)]
    run("t2_work_queue", "submit", "a.", "b.", "c.", "d.")
    done = [line for worker in workers for line in lines(worker) if line.startswith("done")]
    assert sorted(done) == ["done: a.", "done: b.", "done: c.", "done: d."]


def test_publish_subscribe(run, start):
    listeners = [start("t3_publish_subscribe", "listen", "--count", "1") for _ in range(2)]
    run("t3_publish_subscribe", "publish", "carrots")
    assert [lines(listener) for listener in listeners] == [["received: carrots"]] * 2


def test_routing(run, start):
    urgent = start("t4_routing", "watch", "warning", "error", "--count", "2")
    everything = start("t4_routing", "watch", "info", "warning", "error", "--count", "3")
    for level in ("info", "warning", "error"):
        run("t4_routing", "report", level, "fox")
    assert lines(urgent) == ["warning: fox", "error: fox"]
    assert lines(everything) == ["info: fox", "warning: fox", "error: fox"]


def test_topics(run, start):
    north = start("t5_topics", "follow", "north.#", "--count", "2")
    hares = start("t5_topics", "follow", "*.hare.*", "#.owl", "--count", "3")
    for key in ("north.hare.seen", "south.hare.heard", "north", "south.fox.seen", "west.owl"):
        run("t5_topics", "announce", key, "!")
    assert lines(north) == ["north.hare.seen: !", "north: !"]
    assert lines(hares) == ["north.hare.seen: !", "south.hare.heard: !", "west.owl: !"]


def test_rpc(run, start):
    server = start("t6_rpc", "serve", "--count", "3")
    answers = run("t6_rpc", "ask", "1", "6", "27")
    assert answers == ["1 takes 0 steps", "6 takes 8 steps", "27 takes 111 steps"]
    assert len(lines(server)) == 3


def test_publisher_confirms(run):
    single = run("t7_publisher_confirms", "single", "--count", "20")
    assert single == ["confirmed 20 one by one, the queue holds 20"]
    pipelined = run("t7_publisher_confirms", "pipelined", "--count", "500")
    assert pipelined[0] == "confirmed 500 in a pipeline, 0 refused"
    assert run("t7_publisher_confirms", "unroutable") == ["returned: anyone? (NO_ROUTE)"]
