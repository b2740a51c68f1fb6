"""Every refusal is one log line with source, user and reason, and without secrets."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterator

import httpx
import pika
import pytest

import leveret
from leveret.broker import Broker
from leveret.broker.access.passwords import hash_password
from leveret.model.definitions import PermissionDefinition
from tests.http.conftest import Served, serve
from tests.support.brokers import running_leveret

SECONDS = 30.0
SECRET = "hunter2-not-to-be-seen"
HEAD = b"PUT /api/vhosts/x HTTP/1.1\r\nhost: localhost\r\n"
LOGIN = b"authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"
HELLO = b"AMQP\x00\x00\x09\x01"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with _served() as served:
        yield served


@pytest.fixture
def fresh() -> Iterator[Served]:
    """A broker that has not yet logged ten refusals in this second."""
    with _served() as served:
        yield served


@contextlib.contextmanager
def _served() -> Iterator[Served]:
    with serve() as threaded:
        served = Served(threaded)
        served.on_loop(_make_user)
        yield served


def _make_user(hub: Broker) -> None:
    hub.users.put_user("few", hash_password("few"), ("management",))
    hub.users.put_user("plain", hash_password("plain"), ())
    hub.users.set_permission(PermissionDefinition("few", "/", "^few", "", ""))


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[..., list[str]]:
    def find(*words: str, count: int = 1) -> list[str]:
        """Return the lines with all these words, once there are `count`."""
        deadline = time.monotonic() + SECONDS
        while True:
            ours = [record for record in caplog.records if record.name.startswith("leveret")]
            said = [record.getMessage() for record in ours]
            found = [line for line in said if all(word in line for word in words)]
            if len(found) >= count:
                assert len(found) == count, found
                assert not any(SECRET in line for line in said)
                return found
            assert time.monotonic() < deadline, said
            time.sleep(0.01)

    return find


Lines = Callable[..., list[str]]


def _send(address: tuple[str, int], data: bytes) -> None:
    with socket.create_connection(address, SECONDS) as raw:
        raw.sendall(data)
        while raw.recv(4096):
            pass


def test_silent_connection(lines: Lines) -> None:
    settings = leveret.in_process_settings(handshake_timeout=0.2)
    with leveret.ThreadedBroker(settings) as threaded:
        _send(threaded.amqp_address, b"")
        lines("127.0.0.1", "dropped: did not log in within 0.2 s")


def test_unknown_protocol(served: Served, lines: Lines) -> None:
    _send(served.threaded.amqp_address, b"GET / HTTP/1.1\r\n\r\n")
    lines("127.0.0.1", "dropped: peer does not speak AMQP 0-9-1")
    url = httpx.URL(served.url)
    _send((url.host, url.port or 0), b"\x16\x03\x01nonsense\r\n\r\n")
    lines("HTTP from 127.0.0.1 refused: not an HTTP request")


def test_too_much_input_before_login(lines: Lines) -> None:
    answer = b"\x00nobody\x00" + SECRET.encode()
    start_ok = b"\x00\x0a\x00\x0b" + bytes(4) + b"\x05PLAIN"
    start_ok += len(answer).to_bytes(4, "big") + answer + b"\x05en_US"
    frame = b"\x01\x00\x00" + len(start_ok).to_bytes(4, "big") + start_ok + b"\xce"
    with leveret.ThreadedBroker(leveret.in_process_settings(login_buffer=8192)) as threaded:
        with contextlib.suppress(ConnectionError):
            _send(threaded.amqp_address, HELLO + frame + bytes(20_000))
        lines("127.0.0.1", "dropped: sent more than 8192 bytes before it logged in")
        lines("127.0.0.1")


def test_disconnect_before_login_is_one_line(
    served: Served, lines: Lines, caplog: pytest.LogCaptureFixture
) -> None:
    address = served.threaded.amqp_address
    with caplog.at_level(logging.DEBUG, "leveret.amqp"):
        with socket.create_connection(address, SECONDS) as raw:
            name = "{}:{} -> ".format(*raw.getsockname())
            raw.sendall(HELLO)
            assert raw.recv(4096)
        lines(name, "disconnected before it opened a vhost")
        lines(name)
        with socket.create_connection(address, SECONDS) as raw:  # a port scan
            name = "{}:{} -> ".format(*raw.getsockname())
        lines(name, "disconnected before it opened a vhost")
    levels = [one.levelname for one in caplog.records if "disconnected before" in one.getMessage()]
    assert levels == ["INFO", "DEBUG"]


@pytest.mark.parametrize("data", [b"", HEAD, HEAD + LOGIN + b"content-length: 9\r\n\r\n{"])
def test_incomplete_requests(lines: Lines, data: bytes) -> None:
    settings = leveret.in_process_settings(http_enabled=True, http_timeout=0.3)
    with leveret.ThreadedBroker(settings) as threaded:
        url = httpx.URL(threaded.http_url)
        with contextlib.suppress(ConnectionError):
            _send((url.host, url.port or 0), data)
        if data:
            lines("HTTP from 127.0.0.1 refused: no complete request within 0.3 s")
        lines("HTTP from", count=1 if data else 0)


def test_unknown_protocol_is_one_line_of_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    with running_leveret() as target:
        _send((target.host, target.http_port), b"nonsense\r\n\r\n")
    (line,) = [one for one in capsys.readouterr().err.splitlines() if " WARNING " in one]
    assert "leveret.http: HTTP from 127.0.0.1 refused: not an HTTP request" in line


def test_wrong_password_over_amqp_is_one_line(served: Served, lines: Lines) -> None:
    host, port = served.threaded.amqp_address
    wrong = pika.PlainCredentials("guest", SECRET)
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(
            pika.ConnectionParameters(host, port, credentials=wrong, connection_attempts=1)
        )
    lines("login of 'guest' refused", "wrong user name or password")
    lines("refused", count=1)


def test_refused_requests(served: Served, lines: Lines) -> None:
    with served.client(None) as nobody, served.client("few") as few:
        assert nobody.get("/api/overview?password=" + SECRET).status_code == 401
        lines("HTTP from 127.0.0.1", "GET /api/overview of user '' refused: 401, not signed in")
        assert few.put("/api/users/x", json={"password": SECRET, "tags": ""}).status_code == 403
        lines("PUT /api/users/x of user 'few' refused: 403, this needs the tag administrator")
        assert few.put("/api/queues/%2F/few", content=b" " * 1_100_000).status_code == 413
        lines("PUT /api/queues/%2F/few of user 'few' refused: 413, ")
        assert few.put("/api/queues/%2F/few", content=b"{").status_code == 400
        lines("PUT /api/queues/%2F/few of user 'few' refused: 400, the body is not valid JSON")
        assert nobody.get("/", headers={"host": "evil.example"}).status_code == 400
        lines("GET / of user '' refused: 400, this broker does not answer to that host")
        assert few.get("/api/queues/%2F/none").status_code == 404
        lines("none", count=0)


def test_reasons_are_bounded_and_contain_no_secrets(fresh: Served, lines: Lines) -> None:
    with fresh.client() as api, fresh.client("few") as few:
        assert few.put("/api/queues/%2F/other", json={}).status_code == 403
        lines("PUT /api/queues/%2F/other of user 'few' refused: 403, ", "access to queue 'other'")
        body = {"password": SECRET, "password_hash": SECRET, "tags": ["x"]}
        assert api.put("/api/users/y", json=body).status_code == 400
        lines("/api/users/y", "refused: 400, both_password_and_password_hash_are_provided")
        assert api.put("/api/users/z", json={"password": [SECRET], "tags": ""}).status_code == 400
        lines("/api/users/z", "refused: 400, password: Input should be a valid string")
        assert api.put("/api/users/w", json={"tags": [f",{'t' * 5_000}"]}).status_code == 400
        (line,) = lines("/api/users/w", "refused: 400, a tag must not contain a comma: ',ttt")
        assert len(line) < 500


def test_sign_in_without_a_tag_names_the_user(fresh: Served, lines: Lines) -> None:
    with fresh.client(None) as nobody:
        answer = nobody.post("/api/login", json={"username": "plain", "password": "plain"})
        assert answer.status_code == 403
    lines("POST /api/login of user 'plain' refused: 403, user has no management tag")


def test_wrong_password_over_http_is_one_line(served: Served, lines: Lines) -> None:
    with served.client("few", SECRET) as wrong, served.client("plain") as plain:
        assert wrong.get("/api/whoami").status_code == 401
        lines("login of 'few' refused: wrong user name or password")
        lines("refused", count=1)
        assert plain.get("/api/whoami").status_code == 403  # right password, but no tag
        lines("GET /api/whoami of user 'plain' refused: 403")
