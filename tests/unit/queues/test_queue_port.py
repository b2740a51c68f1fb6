"""Every kind of queue implements the queue port, so callers need not test for the kind."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from leveret.queues.classic.classic_queue import ClassicQueue
from leveret.queues.log.log_queue import LogQueue, PartitionedLog
from leveret.queues.port import Queue, Target
from leveret.queues.reply import ReplyQueue

ROOT = Path(__file__).parents[3]
FOLDERS = ("leveret", "exchange", "queues", "bindings", "amqp_server", "http_admin", "spark_sink")
KINDS = (ClassicQueue, LogQueue, PartitionedLog, ReplyQueue)
NARROWING = "queues/log/log_queue.py"
"""Offsets and groups are not part of the port: `maybe_log` and `maybe_partition` test for logs."""


@pytest.mark.parametrize("kind", KINDS)
def test_kind_implements_every_method_of_the_port(kind: type) -> None:
    members = {name for port in (Target, Queue) for name in vars(port) if not name.startswith("_")}
    methods = {name for name in members if callable(getattr(Queue, name))}
    assert methods and not {name for name in methods if not callable(getattr(kind, name, None))}


def kind_tests(path: Path) -> list[str]:
    names = {kind.__name__ for kind in KINDS}
    calls = [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Call)]
    return [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id == "isinstance"
        for node in ast.walk(call.args[1])
        if isinstance(node, ast.Name) and node.id in names
    ]


def test_no_other_module_tests_for_the_kind_of_a_queue() -> None:
    modules = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    kind_checks = {test for path in modules for test in kind_tests(path)}
    assert {test.rpartition(":")[0] for test in kind_checks} == {NARROWING}
