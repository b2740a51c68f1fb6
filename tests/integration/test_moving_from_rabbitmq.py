"""Moving to Leveret and back, against a real RabbitMQ: definitions, and the documented steps."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest

from leveret.testing.ports import free_port
from tests.docs.blocks import ROOT, blocks_of
from tests.support.brokers import Target, running_leveret
from tests.support.rabbitmq import RABBITMQCTL, RabbitMQ, started_rabbitmq

PAGE = "docs/moving-from-rabbitmq.md"
GUEST = ("guest", "guest")
TIMEOUT = 300
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def rabbitmq() -> Iterator[RabbitMQ]:
    with started_rabbitmq(free_port(), free_port()) as started:
        yield started


@pytest.fixture
def leveret(tmp_path: Path) -> Iterator[Target]:
    with running_leveret("--data-dir", str(tmp_path / "data")) as target:
        yield target


@pytest.fixture
def clean(rabbitmq: RabbitMQ) -> Iterator[None]:
    """Delete what a test made in RabbitMQ: vhosts, and queues of the default one."""
    yield
    api = httpx.Client(base_url=f"{rabbitmq.http_url}/api", auth=GUEST, timeout=TIMEOUT)
    with api:
        for row in api.get("/queues/%2F").json():
            api.delete(f"/queues/%2F/{row['name']}")
        for row in api.get("/vhosts").json():
            if row["name"] != "/":
                api.delete(f"/vhosts/{row['name']}")


def connect(url: str) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(url))


def run_page(
    test: str, folder: Path, rabbitmq: RabbitMQ, leveret: Target, *, skip: str = "leveret serve"
) -> str:
    """Run the blocks of the page that name this test, with the addresses of these brokers."""
    ports = {
        "5672": rabbitmq.port,
        "15672": rabbitmq.http_port,
        "5673": leveret.port,
        "15673": leveret.http_port,
    }
    blocks = [
        block.text
        for block in blocks_of((ROOT / PAGE).read_text(encoding="utf-8"), PAGE)
        if block.detail.endswith(f"::{test}") and skip not in block.text
    ]
    assert blocks, f"no block of {PAGE} names {test}"
    script = re.sub(r"(?<=:)(1?567[23])\b", lambda match: str(ports[match[1]]), "\n".join(blocks))
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=shell_environment(folder, rabbitmq.environment),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert result.returncode == 0, f"{script}\n{result.stdout}{result.stderr}"
    return result.stdout + result.stderr


def shell_environment(folder: Path, rabbitmq: Mapping[str, str]) -> dict[str, str]:
    """The environment of `rabbitmqctl`, with it and `leveret` of this interpreter in the PATH."""
    shims = folder / ".shims"
    shims.mkdir(exist_ok=True)
    for name, command in (
        ("leveret", f"{sys.executable} -m leveret"),
        ("rabbitmqctl", f"{RABBITMQCTL} --quiet"),
    ):
        (shims / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (shims / name).chmod(0o755)
    path = f"{shims}:{os.environ['PATH']}"
    return {**rabbitmq, "PATH": path, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}


def fill(rabbitmq: RabbitMQ) -> pika.BlockingConnection:
    """Make one of everything; the connection owns an exclusive queue."""
    api = httpx.Client(base_url=f"{rabbitmq.http_url}/api", auth=GUEST, timeout=TIMEOUT)
    with api:
        for path, body in (
            ("vhosts/shop", {"description": "The shop", "tags": "eu,live"}),
            ("vhost-limits/shop/max-queues", {"value": 50}),
            ("users/ada", {"password": "lovelace", "tags": "monitoring"}),
            ("user-limits/ada/max-channels", {"value": 4}),
            ("permissions/shop/ada", {"configure": "^x", "write": ".*", "read": ".*"}),
            (
                "policies/shop/ha",
                {"pattern": "^(?!amq\\.).*", "definition": {"ha-mode": "all", "max-length": 9}},
            ),
            ("operator-policies/shop/cap", {"pattern": "^tmp", "definition": {"max-length": 4}}),
            ("global-parameters/mqtt_default_vhosts", {"value": {"CN=guest": "/"}}),
        ):
            answer = api.put(f"/{path}", json=body)
            assert answer.status_code in (201, 204), f"{path}: {answer.text}"
    connection = connect(rabbitmq.url)
    channel = connection.channel()
    channel.queue_declare("orders", durable=True, arguments={"x-max-length": 1000})
    channel.queue_declare("safe", durable=True, arguments={"x-queue-type": "quorum"})
    channel.queue_declare("feed", durable=True, arguments={"x-queue-type": "stream"})
    channel.queue_declare("private", exclusive=True)
    channel.queue_bind("private", "amq.topic", "a")
    channel.exchange_declare("in", "headers", durable=True)
    channel.queue_bind("orders", "in", "", {"x-match": "all", "nested": {"n": 1}})
    return connection


def test_export_of_rabbitmqctl_is_imported(rabbitmq, leveret, clean, tmp_path):
    """Lists of pairs, bindings of exclusive queues, keys without effect: nothing gets lost."""
    with fill(rabbitmq):
        rabbitmq.ctl("export_definitions", str(tmp_path / "out.json"))
    document = json.loads((tmp_path / "out.json").read_text())
    [cap] = [row for row in document["parameters"] if row["name"] == "cap"]
    assert cap["value"]["definition"] == [["max-length", 4]]  # else the test shows nothing
    url = f"http://127.0.0.1:{leveret.http_port}/api"
    answer = httpx.post(
        f"{url}/definitions?warnings=true", json=document, auth=GUEST, timeout=TIMEOUT
    )
    assert answer.status_code == 200, answer.text
    assert [re.sub(r" (was|is) .*", "", text) for text in answer.json()["warnings"]] == [
        "global parameter 'mqtt_default_vhosts'",
        "policy 'ha' in vhost 'shop': 'ha-mode'",
        "binding from 'amq.topic' to queue 'private' in vhost '/'",
    ]
    ours = httpx.get(f"{url}/definitions", auth=GUEST, timeout=TIMEOUT).json()
    for section in ("users", "permissions", "policies", "queues", "exchanges", "bindings"):
        assert rows_of(ours, section) == rows_of(document, section)
    [cap] = [row for row in ours["parameters"] if row["name"] == "cap"]
    assert cap["value"]["definition"] == {"max-length": 4}


IGNORED = ("type", "internal")


def rows_of(document: dict[str, Any], section: str) -> list[str]:
    """Rows without the fields that only one of the brokers writes, and without dangling bindings.

    The type of an exchange stays; a queue's type is also among its arguments.
    """
    skipped = [name for name in IGNORED if (section, name) != ("exchanges", "type")]
    rows = [
        {key: value for key, value in row.items() if key not in skipped}
        for row in document[section]
        if row.get("destination") != "private"
    ]
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def test_page_step_by_step(rabbitmq, leveret, clean, tmp_path):
    with fill(rabbitmq) as connection:
        connection.channel().basic_publish("", "orders", b"the last order")
        output = run_page("test_page_step_by_step", tmp_path, rabbitmq, leveret)
    assert "Definitions imported from rabbitmq.json" in output
    assert "'ha-mode' is kept, but has no effect" in output
    assert "of 3 queues moved in this run, all confirmed by the target" in output
    assert get_one(leveret.url, "orders") == b"the last order"
    exported = json.loads((tmp_path / "rabbitmq.json").read_text())
    assert "product_name" not in exported  # it is still RabbitMQ's
    connection = pika.BlockingConnection(
        pika.ConnectionParameters(
            leveret.host, leveret.port, "shop", pika.PlainCredentials("ada", "lovelace")
        )
    )
    connection.close()


def test_page_back_to_rabbitmq(rabbitmq, leveret, clean, tmp_path):
    with connect(leveret.url) as connection:
        channel = connection.channel()
        channel.queue_declare("from-leveret", durable=True)
        channel.basic_publish("", "from-leveret", b"back again")
    run_page("test_page_back_to_rabbitmq", tmp_path, rabbitmq, leveret)
    assert get_one(rabbitmq.url, "from-leveret") == b"back again"  # guest is not locked out


def test_users_move_back_with_rabbitmqs_hashes(rabbitmq, tmp_path):
    """The setting keeps the passwords in RabbitMQ's form, also of users that log in."""
    settings = ("--data-dir", str(tmp_path / "data"), "--set", "password_hashing=rabbitmq")
    with running_leveret(*settings) as leveret:
        api = httpx.Client(base_url=f"http://127.0.0.1:{leveret.http_port}/api", auth=GUEST)
        with api:
            answer = api.put("/users/mary", json={"password": "shelley", "tags": "management"})
            assert answer.status_code == 201
            exported = api.get("/definitions").json()
    assert {row["name"] for row in exported["users"]} == {"guest", "mary"}
    assert "leveret" not in exported
    (tmp_path / "leveret.json").write_text(json.dumps(exported))
    rabbitmq.ctl("import_definitions", str(tmp_path / "leveret.json"))
    url = f"{rabbitmq.http_url}/api/whoami"
    assert httpx.get(url, auth=("mary", "shelley"), timeout=TIMEOUT).json()["name"] == "mary"
    assert httpx.get(url, auth=("mary", "wrong"), timeout=TIMEOUT).status_code == 401
    rabbitmq.ctl("delete_user", "mary")


def get_one(url: str, queue: str) -> bytes | None:
    with connect(url) as connection:
        body: bytes | None = connection.channel().basic_get(queue, auto_ack=True)[2]
        return body


# Messages -----------------------------------------------------------------------------------------

QUEUES: dict[str, dict[str, Any]] = {
    "classic": {},
    "quorum": {"x-queue-type": "quorum"},
    "stream": {"x-queue-type": "stream"},
}
MESSAGES = 600
HEADERS = {"n": 1, "text": "ü", "bytes": b"\xff\x00", "flag": True}
NESTED = HEADERS | {"deep": {"list": [1, True, None, "ü"]}, "CC": ["x"]}


def headers_in(queue: str) -> dict[str, Any]:
    """RabbitMQ 3.10 removes tables and arrays from the headers of a stream."""
    return HEADERS if queue == "stream" else NESTED


def declare_queues(url: str) -> None:
    with connect(url) as connection:
        channel = connection.channel()
        for name, arguments in QUEUES.items():
            channel.queue_declare(name, durable=True, arguments=arguments)


def publish(url: str, queue: str, count: int) -> None:
    with connect(url) as connection:
        channel = connection.channel()
        channel.exchange_declare("feeder", "fanout", auto_delete=True)
        channel.queue_bind(queue, "feeder")
        for number in range(count):
            properties = pika.BasicProperties(
                headers=headers_in(queue), message_id=str(number), delivery_mode=2
            )
            channel.basic_publish("feeder", f"key.{number}", b"x" * (number % 50), properties)
        channel.exchange_delete("feeder")  # its reply comes after all messages were routed


def received(url: str, queue: str, count: int) -> list[str]:
    """Consume the messages; check each, and return their ids in order."""
    ids: list[str] = []
    with connect(url) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1000)
        offset = {"x-stream-offset": "first"} if queue == "stream" else {}
        for method, properties, body in channel.consume(queue, arguments=offset):
            properties.headers.pop("x-stream-offset", None)
            number = int(properties.message_id)
            assert properties.headers == headers_in(queue)
            assert (method.routing_key, body) == (f"key.{number}", b"x" * (number % 50))
            channel.basic_ack(method.delivery_tag)
            ids.append(properties.message_id)
            if len(ids) == count:
                channel.cancel()
                break
        if not offset:
            assert channel.queue_declare(queue, passive=True).method.message_count == 0
    return ids


def move_command(source: str, target: str, folder: Path, *words: str) -> list[str]:
    urls = ["--from", source, "--to", target, "--state", str(folder / "state.db")]
    return [sys.executable, "-m", "leveret", "move", *urls, "--formatter", "json", *words]


def move(source: str, target: str, folder: Path, *words: str) -> list[dict[str, Any]]:
    result = subprocess.run(
        move_command(source, target, folder, *words),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    rows: list[dict[str, Any]] = json.loads(result.stdout)
    return rows


def kill_in_the_middle(source: str, target: str, folder: Path, queue: str, arrived: int) -> None:
    """Start a move, and kill -9 it when this many messages have arrived at the target."""
    process = subprocess.Popen(
        move_command(source, target, folder, "--queue", queue, "--batch", "5"),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with connect(target) as connection:
        channel = connection.channel()
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline and process.poll() is None:
            count = channel.queue_declare(queue, passive=True).method.message_count
            if count >= arrived:
                break
        else:
            raise AssertionError("the move was not in the middle")
    process.kill()
    process.wait()


def test_all_queues_move_to_leveret_and_back(rabbitmq, leveret, clean, tmp_path):
    """Order, routing keys, properties and headers; the checksum of both ways is the same."""
    declare_queues(rabbitmq.url)
    declare_queues(leveret.url)
    for queue in QUEUES:
        publish(rabbitmq.url, queue, 100)
    leveret_api = f"http://127.0.0.1:{leveret.http_port}"
    words = ("--all", "--idle", "1")
    there = move(rabbitmq.url, leveret.url, tmp_path, *words, "--from-api", rabbitmq.http_url)
    assert {row["queue"]: row["messages"] for row in there} == dict.fromkeys(QUEUES, 100)
    assert received(leveret.url, "stream", 100) == [str(number) for number in range(100)]
    back = move(leveret.url, rabbitmq.url, tmp_path, *words, "--from-api", leveret_api)
    assert checksums(back) == checksums(there)
    for queue in ("classic", "quorum"):
        assert received(rabbitmq.url, queue, 100) == [str(number) for number in range(100)]


def checksums(rows: list[dict[str, Any]]) -> dict[str, str]:
    return {row["queue"]: row["checksum"] for row in rows}


@pytest.mark.parametrize(
    ("queue", "direction"),
    [("classic", "to leveret"), ("quorum", "to leveret"), ("classic", "to rabbitmq")],
)
def test_killed_move_continues_without_loss(rabbitmq, leveret, clean, tmp_path, queue, direction):
    urls = (rabbitmq.url, leveret.url)
    source, target = urls if direction == "to leveret" else urls[::-1]
    declare_queues(rabbitmq.url)
    declare_queues(leveret.url)
    publish(source, queue, MESSAGES)
    for arrived in (MESSAGES // 3, 2 * MESSAGES // 3):
        kill_in_the_middle(source, target, tmp_path, queue, arrived)
    [row] = move(source, target, tmp_path, "--queue", queue)
    with connect(target) as connection:
        declared = connection.channel().queue_declare(queue, passive=True)
        count = declared.method.message_count
    ids = received(target, queue, count)
    assert set(ids) == {str(number) for number in range(MESSAGES)}
    assert count - MESSAGES <= row["possible_duplicates"] <= 2 * 5
    with connect(source) as connection:
        declared = connection.channel().queue_declare(queue, passive=True)
        assert declared.method.message_count == 0


# The page -----------------------------------------------------------------------------------------


def test_serve_command_of_the_page_starts_a_broker(tmp_path):
    """The other tests start it with free ports."""
    blocks = blocks_of((ROOT / PAGE).read_text(encoding="utf-8"), PAGE)
    [command] = [block.text for block in blocks if "leveret serve --data-dir" in block.text]
    words = command.split()
    assert words[:2] == ["leveret", "serve"] and words[4::2] == ["--amqp-port", "--http-port"]
    with running_leveret("--data-dir", str(tmp_path / words[3])) as target:
        assert target.port
