"""Log lines and the audit log: one line per event, no secrets, who changed what."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest

import leveret
from leveret.broker.access import audit
from leveret.broker.access.audit import REFUSED_PER_MINUTE, AuditLog, Entry
from leveret.broker.access.passwords import hash_password
from leveret.logging_setup import JsonFormatter, TextFormatter, escaped
from leveret.model.definitions import PermissionDefinition
from tests.http.conftest import Served, serve
from tests.support.brokers import ROOT

CANARY = "cAnArY-7f3a"
"""Part of every secret below; it must not appear anywhere."""


def _record(message: str, **more: Any) -> logging.LogRecord:
    record = logging.LogRecord("leveret.x", logging.INFO, "f", 1, message, (), None)
    record.__dict__.update(more)
    return record


@pytest.mark.parametrize("name", ["a\nb", "a\r\nINFO fake", "\x1b[2J", "tab\there", "\u2028"])
def test_names_cannot_start_a_second_line(name: str) -> None:
    for lines in (TextFormatter(), JsonFormatter()):
        said = lines.format(_record(f"user {name!s} came"))
        assert "\n" not in said and "\x1b" not in said and "\r" not in said
    assert escaped("plain ü") == "plain ü"


def test_json_lines_have_fields() -> None:
    said = json.loads(JsonFormatter().format(_record("x", facts={"event": "login refused"})))
    assert said["event"] == "login refused" and said["level"] == "info"
    assert said["time"].endswith("Z") and said["logger"] == "leveret.x" and said["message"] == "x"


def test_json_lines_contain_exceptions() -> None:
    try:
        raise ValueError("no")
    except ValueError:
        said = json.loads(JsonFormatter().format(_record("x", exc_info=sys.exc_info())))
    assert "ValueError: no" in said["exception"]


# Secrets -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _process(folder: Path) -> Iterator[tuple[int, int, Path, int]]:
    """Run a broker with a JSON log; yield its AMQP and HTTP ports, log and process id."""
    log = folder / "log"
    command = [sys.executable, "-m", "leveret", "serve", "--amqp-port", "0", "--http-port", "0"]
    command += ["--data-dir", str(folder / "data"), "--set", "log_format=json"]
    command += ["--set", "log_level=debug"]
    environment = {**os.environ, "LEVERET_DEFAULT_PASSWORD": f"default-{CANARY}"}
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT, env=environment
        )
        assert process.stdout is not None
        try:
            words = dict(w.split("=") for w in process.stdout.readline().decode().split()[2:])
            ports = [int(words[name].rpartition(":")[2]) for name in ("amqp", "http")]
            yield ports[0], ports[1], log, process.pid
        finally:
            process.terminate()
            process.wait(30)
            process.stdout.close()


def _use_secrets(amqp: int, http: int) -> list[str]:
    """Send every kind of secret, right and wrong; return the answers without the hashes."""
    heard = []
    admin = ("guest", f"default-{CANARY}")
    with httpx.Client(base_url=f"http://127.0.0.1:{http}", auth=admin, timeout=60) as api:
        body: Any = {"password": f"new-{CANARY}", "tags": "management"}
        heard.append(api.put("/api/users/u", json=body).text)
        heard.append(api.put("/api/users/v", json={**body, "tags": 5}).text)
        heard.append(api.put("/api/users/v", content=json.dumps(body)[:-3]).text)
        heard.append(api.get("/api/whoami", auth=("u", f"wrong-{CANARY}")).text)
        login = {"username": "u", "password": f"new-{CANARY}"}
        heard.append(api.post("/api/login", json=login).text)
        heard.append(api.post("/api/login", json={**login, "password": f"bad-{CANARY}"}).text)
        heard.append(api.post("/api/login", json={"password": f"alone-{CANARY}"}).text)
        assert api.get(f"/api/auth/hash_password/path-{CANARY}").status_code == 200
        heard.append(api.delete(f"/api/auth/hash_password/path-{CANARY}").text)
        users: Any = {"users": [{"name": "w", "password": f"import-{CANARY}", "tags": 5}]}
        heard.append(api.post("/api/definitions", json=users).text)
        for path in ("/api/settings", "/api/overview", "/api/users", "/api/definitions"):
            heard.append(api.get(path).text)
    for name, password in (("guest", f"default-{CANARY}"), ("guest", f"bad-{CANARY}")):
        credentials = pika.PlainCredentials(name, password)
        try:
            pika.BlockingConnection(
                pika.ConnectionParameters("127.0.0.1", amqp, credentials=credentials)
            ).close()
        except pika.exceptions.AMQPError as error:
            heard.append(repr(error))
    return heard


def test_no_secret_is_logged_or_answered(tmp_path: Path) -> None:
    with _process(tmp_path) as (amqp, http, log, pid):
        heard = _use_secrets(amqp, http)
        command_line = Path(f"/proc/{pid}/cmdline").read_bytes()
    assert CANARY.encode() not in command_line
    assert not [text for text in heard if CANARY in text]
    lines = log.read_text(encoding="utf-8")
    assert CANARY not in lines
    events = [json.loads(line).get("event") for line in lines.splitlines()]
    assert events.count("connection opened") == 1
    assert events.count("login refused") == 3
    data = tmp_path / "data"
    for path in data.rglob("*"):
        if path.is_file():
            assert CANARY.encode() not in path.read_bytes(), path
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert stat.S_IMODE(data.stat().st_mode) == 0o700


# Audit -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(data_dir=tmp_path_factory.mktemp("audit")) as threaded:
        yield Served(threaded)


def _entries(api: httpx.Client, **query: Any) -> list[dict[str, Any]]:
    answer = api.get("/api/audit", params=query)
    assert answer.status_code == 200, answer.text
    entries: list[dict[str, Any]] = answer.json()
    return entries


def test_changes_over_http_are_audited(served: Served) -> None:
    with served.client() as api:
        api.put("/api/queues/%2F/audited", json={})
        api.put("/api/users/eve", json={"password": CANARY, "tags": ""})
        api.put("/api/users/eve", json={"password": CANARY})  # 400
        api.get("/api/queues")
        message = {"routing_key": "x", "payload": "x", "properties": {}}
        api.post("/api/exchanges/%2F/amq.default/publish", json=message)
        found = _entries(api, count=3)
    assert [(one["action"], one["outcome"]) for one in found] == [
        ("PUT /api/users/eve", "400"),
        ("PUT /api/users/eve", "done"),
        ("PUT /api/queues/%2F/audited", "done"),
    ]
    assert {(one["user"], one["source"], one["via"]) for one in found} == {
        ("guest", "127.0.0.1", "HTTP")
    }
    assert CANARY not in str(found)


def test_changes_without_a_name_in_the_path_are_audited_by_name(served: Served) -> None:
    users = [{"name": name, "password_hash": "", "tags": ""} for name in ("uma", "udo")]
    rights = {"user": "uma", "vhost": "/", "configure": "", "write": "", "read": ""}
    made = {"vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
    queues = [{"name": f"many-{n}", **made} for n in range(23)]
    document = {"queues": queues, "permissions": [rights], "users": users}
    with served.client() as api:
        assert api.post("/api/definitions", json=document).status_code == 204
        gone = {"users": ["uma", "udo"]}
        assert api.post("/api/users/bulk-delete", json=gone).status_code == 204
        assert api.delete("/api/queues/%2F/many-0").status_code == 204
        third, second, first = _entries(api, count=3)
        assert first["target"].startswith("users: uma, udo; permissions: uma; queues: many-0, many")
        assert first["target"].endswith("many-21, many-22")
        assert second["target"] == "uma, udo"
        assert third["vhost"] == "/" and third in _entries(api, vhost="/")
        assert first not in _entries(api, vhost="/")


def test_slashes_do_not_hide_a_change_from_the_audit(served: Served) -> None:
    with served.client() as api:
        path = "/api" + "/" * 600 + "users//evil/"
        assert api.put(path, json={"password": CANARY, "tags": ""}).status_code == 201
        assert api.delete("/api/users/evil").status_code == 204
        gone, made = _entries(api, count=2)
    assert made["action"] == "PUT /api/users/evil"
    assert gone["action"] == "DELETE /api/users/evil"


def test_long_names_do_not_hide_a_change_from_the_audit(served: Served) -> None:
    vhost, queue = "%F0%9F%90%87" * 60, "%F0%9F%90%87" * 50 + "-last"
    with served.client() as api:
        assert api.put(f"/api/vhosts/{vhost}").status_code == 201
        assert api.put(f"/api/queues/{vhost}/{queue}", json={}).status_code == 201
        (made,) = _entries(api, count=1)
        assert api.delete(f"/api/vhosts/{vhost}").status_code == 204
    assert made["action"] == f"PUT /api/queues/{vhost}/{queue}"


def test_only_deleted_users_are_named(served: Served) -> None:
    with served.client() as api:
        assert api.put("/api/users/poor", json={"tags": ""}).status_code == 201
        asked = {"users": ["x" * 600, "poor", "poor"]}
        assert api.post("/api/users/bulk-delete", json=asked).status_code == 204
        (entry,) = _entries(api, count=1)
        assert entry["target"] == "poor"
        api.post("/api/users/bulk-delete", json={"users": ["nobody", "guest"]})
        (entry,) = _entries(api, count=1)
    assert (entry["target"], entry["outcome"]) == ("guest", "400")


def test_every_user_of_an_imported_file_is_named(served: Served) -> None:
    def document(names: list[str]) -> dict[str, Any]:
        return {"users": [{"name": name, "password_hash": "", "tags": ""} for name in names]}

    few = [f"{number}{'u' * 99}" for number in range(6)]
    many = [f"{number:03}{'u' * 200}" for number in range(100)]
    with served.client() as api:
        own = {"leveret": document(["evil3"]), "passed over": [{"name": "nobody"}]}
        asked = {**document([*few, *few, "evil2"]), **own}
        assert api.post("/api/definitions", json=asked).status_code == 204
        assert api.post("/api/definitions", json=document([*many, "evil4"])).status_code == 204
        second, first = _entries(api, count=2)
        gone = {"users": [*few, *many, "evil2", "evil3", "evil4"]}
        assert api.post("/api/users/bulk-delete", json=gone).status_code == 204
    assert first["target"] == f"users: {', '.join([*few, 'evil2', 'evil3'])}"
    whole = f"users: {', '.join([*many, 'evil4'])}"
    digest = hashlib.sha256(whole.encode()).hexdigest()
    shown = second["target"].count("u" * 200 + ",")
    assert second["target"].endswith(f"... and {101 - shown} more (SHA-256 of all: {digest})")
    assert len(second["target"].encode()) <= 8192 and 30 < shown < 101


def test_refused_changes_name_the_user(tmp_path: Path) -> None:
    """On a broker of its own: refused changes are recorded 60 times a minute at most."""
    with serve(data_dir=tmp_path) as threaded:
        served = Served(threaded)
        with served.client() as api, served.client(None) as unauthenticated:
            assert unauthenticated.delete("/api/queues/%2F/audited").status_code == 401
            (entry,) = _entries(api, count=1)
    assert entry["user"] == "" and entry["outcome"] == "401"


def test_unauthenticated_requests_do_not_displace_entries(served: Served) -> None:
    with served.client() as api, served.client(None) as nobody:
        assert api.put("/api/vhosts/audited-before").status_code == 201
        for _ in range(80):
            assert nobody.delete("/api/queues/%2F/" + "x" * 2_000).status_code == 401
        entries = _entries(api, count=70)
        assert any("audited-before" in one["action"] + one["target"] for one in entries)
        assert all(len(one["action"]) <= 500 for one in entries if one["outcome"] == "401")
        assert api.delete("/api/vhosts/audited-before").status_code == 204


async def test_refused_requests_do_not_displace_entries() -> None:
    now = [0]
    record = AuditLog(None, lambda: now[0])
    refused = {"source": "1.2.3.4", "via": "AMQP", "action": "queue.declare", "outcome": "403"}
    for _ in range(1_000):
        record.record(user="few", **refused)
    record.record(user="other", **refused)
    for _ in range(100):
        record.record(user="few", source="", via="HTTP", action="PUT /api/queues/%2F/q")
    entries = await record.newest(10_000, lambda entry: True)
    assert len(entries) == REFUSED_PER_MINUTE + 1 + 100
    now[0] = 60_000
    record.record(user="few", **refused)
    assert len(await record.newest(10_000, lambda entry: True)) == len(entries) + 1


def test_changes_over_amqp_are_audited(served: Served) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(served.amqp_url))
    channel = connection.channel()
    channel.queue_declare("amqp-q", durable=True)
    channel.queue_declare("amqp-q", durable=True)  # changes nothing
    channel.queue_declare("", exclusive=True)  # not visible to other connections
    channel.exchange_declare("amqp-x", "fanout")
    channel.queue_bind("amqp-q", "amqp-x", "k")
    channel.basic_publish("amqp-x", "k", b"x")
    channel.queue_purge("amqp-q")
    channel.exchange_delete("amqp-x")
    channel.queue_delete("amqp-q")
    connection.close()
    with served.client() as api:
        entries = [
            entry
            for entry in _entries(api, count=50, vhost="/")
            if entry["via"] == "AMQP" and "amqp-" in entry["target"]
        ]
    assert [(entry["action"], entry["target"]) for entry in reversed(entries)] == [
        ("queue.declare", "amqp-q"),
        ("exchange.declare", "amqp-x"),
        ("queue.bind", "amqp-x -> amqp-q"),
        ("queue.purge", "amqp-q"),
        ("exchange.delete", "amqp-x"),
        ("queue.delete", "amqp-q"),
    ]
    assert all(entry["source"].startswith("127.0.0.1:") for entry in entries)


def test_refused_changes_over_amqp_are_audited(served: Served) -> None:
    served.on_loop(lambda hub: hub.users.put_user("few", hash_password("few"), ()))
    served.on_loop(
        lambda hub: hub.users.set_permission(PermissionDefinition("few", "/", "^$", "", ""))
    )
    credentials = pika.PlainCredentials("few", "few")
    host, port = served.threaded.amqp_address
    with pika.BlockingConnection(
        pika.ConnectionParameters(host, port, credentials=credentials)
    ) as connection:
        for ask in ({"queue": "not-mine"}, {"queue": "not-mine", "passive": True}):
            with pytest.raises(pika.exceptions.ChannelClosedByBroker):
                connection.channel().queue_declare(**ask)
    with served.client() as api:
        (entry,) = [one for one in _entries(api, count=50) if one["user"] == "few"]
    assert (entry["action"], entry["target"]) == ("queue.declare", "not-mine")
    assert entry["outcome"] == "403" and entry["via"] == "AMQP"
    served.on_loop(lambda hub: hub.delete_user("few"))


@pytest.mark.parametrize(
    ("ask", "target", "outcome"),
    [
        (lambda channel: channel.queue_declare("sure", durable=True), "sure", "406"),
        (lambda channel: channel.queue_delete("sure", if_unused=True), "sure", "406"),
        (lambda channel: channel.queue_bind("sure", "nowhere", "k"), "nowhere -> sure", "404"),
        (lambda channel: channel.queue_declare("", arguments={"x-expires": 0}), "", "406"),
    ],
)
def test_failed_changes_over_amqp_are_audited(
    served: Served, ask: Callable[[Any], Any], target: str, outcome: str
) -> None:
    with pika.BlockingConnection(pika.URLParameters(served.amqp_url)) as connection:
        first, second = connection.channel(), connection.channel()
        first.queue_declare("sure", auto_delete=True)
        first.basic_consume("sure", lambda *_: None)
        second.queue_declare("sure", passive=True)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker):
            ask(second)
        with served.client() as api:
            (entry,) = _entries(api, count=1)
    assert (entry["target"], entry["outcome"]) == (target, outcome)


def test_entries_can_be_filtered(served: Served) -> None:
    with served.client() as api:
        for name in ("one", "two"):
            api.put(f"/api/queues/%2F/{name}", json={})
        everything = _entries(api, count=1000)
        assert _entries(api, user="nobody-at-all") == []
        middle = everything[len(everything) // 2]["time_ms"]
        assert all(one["time_ms"] < middle for one in _entries(api, before=middle))
        assert api.get("/api/audit", params={"count": 0}).status_code == 400


async def test_entries_survive_a_restart_and_files_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MAX_FILE_BYTES", 2_000)
    monkeypatch.setattr(audit, "_BLOCK_BYTES", 64)
    first = AuditLog(tmp_path, lambda: 5)
    for number in range(100):
        first.record(user="ü", source="s", via="HTTP", action=f"{number}", target="\n\ud800")
        if number % 10 == 0:
            await first.stop()
    await first.stop()
    with (tmp_path / "audit.log").open("ab") as file:
        file.write(b'{"time_ms": 1, "user": "cut o')
    again = await AuditLog(tmp_path, lambda: 5).newest(1000, lambda entry: True)
    assert [entry["action"] for entry in again] == [str(n) for n in range(99, 99 - len(again), -1)]
    assert 10 <= len(again) < 100
    assert again[0]["user"] == "ü" and again[0]["target"] == "\n?"
    assert _modes(tmp_path) == {"audit.log": 0o600, "audit.log.1": 0o600}


def _modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


async def test_broker_in_memory_keeps_the_newest_entries() -> None:
    async with leveret.Broker() as running:
        log = running.broker.audit
        for number in range(3):
            log.record(user="u", source="s", via="AMQP", action=str(number))
        found = await log.newest(2, lambda entry: entry["user"] == "u")
    assert [entry["action"] for entry in found] == ["2", "1"]
    assert set(found[0]) == set(Entry.__dataclass_fields__)
