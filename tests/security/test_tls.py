"""R-38: TLS for AMQP and HTTP; certificates are made here and renewed while the broker runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aio_pika
import httpx
import pika
import pytest
import trustme
from pika.credentials import ExternalCredentials

import leveret
from leveret.amqp_server.tls_info import TlsInfo, distinguished_name
from leveret.broker.access.unauthenticated import UnauthenticatedLimits
from leveret.launch import LaunchError
from leveret.tls import Tls, make_context
from tests.support.brokers import running_leveret
from tests.support.polling import wait_until

SECONDS = 30.0


class Authority:
    """A certificate authority with a broker's files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.ca = trustme.CA()
        self.cert, self.key, self.ca_file = (folder / name for name in ("c.pem", "k.pem", "ca.pem"))
        self.ca.cert_pem.write_to_path(self.ca_file)
        self.issue()

    def issue(self) -> None:
        made = self.ca.issue_cert("localhost", "127.0.0.1")
        chain = b"".join(part.bytes() for part in made.cert_chain_pems)
        for path, octets in ((self.cert, chain), (self.key, made.private_key_pem.bytes())):
            fresh = path.with_suffix(".new")
            fresh.write_bytes(octets)
            fresh.replace(path)

    @property
    def settings(self) -> dict[str, Any]:
        return {"tls_cert": str(self.cert), "tls_key": str(self.key), "http_enabled": True}

    def client(self, name: str = "") -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.ca.configure_trust(context)
        if name:
            self.ca.issue_cert("localhost", common_name=name).configure_cert(context)
        return context


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@contextlib.contextmanager
def _broker(**settings: Any) -> Iterator[leveret.Broker]:
    with leveret.ThreadedBroker(leveret.in_process_settings(**settings)) as threaded:
        assert threaded.running is not None
        yield threaded.running


@pytest.fixture(scope="module")
def running(authority: Authority) -> Iterator[leveret.Broker]:
    with _broker(**authority.settings) as running:
        yield running


def _address(running: leveret.Broker) -> tuple[str, int]:
    assert running.amqps_address is not None
    return running.amqps_address


def _pika(running: leveret.Broker, context: ssl.SSLContext, **more: Any) -> Any:
    host, port = _address(running)
    options = pika.SSLOptions(context, "localhost")
    return pika.BlockingConnection(
        pika.ConnectionParameters(host, port, ssl_options=options, **more)
    )


def _certificates(running: leveret.Broker, context: ssl.SSLContext) -> list[bytes]:
    """Return the certificates of AMQPS and HTTPS."""
    assert running.https_address is not None
    return [_certificate_at(one, context) for one in (_address(running), running.https_address)]


def _certificate(running: leveret.Broker, context: ssl.SSLContext) -> bytes:
    return _certificate_at(_address(running), context)


def _certificate_at(address: tuple[str, int], context: ssl.SSLContext) -> bytes:
    """Return the certificate that the broker presents to a new client."""
    with (
        socket.create_connection(address, SECONDS) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as wrapped,
    ):
        shown = wrapped.getpeercert(binary_form=True)
        assert shown is not None
        return shown


def test_pika_over_tls(running: leveret.Broker, authority: Authority) -> None:
    connection = _pika(running, authority.client())
    channel = connection.channel()
    channel.queue_declare("q", exclusive=True)
    channel.basic_publish("", "q", b"x" * 300_000)
    wait_until(lambda: channel.queue_declare("q", passive=True).method.message_count == 1)
    _, _, got = channel.basic_get("q", auto_ack=True)
    assert got == b"x" * 300_000
    with httpx.Client(base_url=running.http_url, auth=("guest", "guest"), timeout=60) as api:
        (row,) = api.get("/api/connections").json()
    assert row["ssl"] is True and row["ssl_protocol"].startswith("TLSv1.")
    assert row["peer_cert_subject"] == ""
    connection.close()


async def test_aio_pika_over_tls(running: leveret.Broker, authority: Authority) -> None:
    host, port = _address(running)
    connection = await aio_pika.connect(
        host=host, port=port, ssl=True, ssl_context=authority.client()
    )
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("", exclusive=True)
        await channel.default_exchange.publish(aio_pika.Message(b"hello"), queue.name)
        message = await queue.get(no_ack=True, timeout=SECONDS)
        assert message.body == b"hello"


def test_http_over_tls(running: leveret.Broker, authority: Authority) -> None:
    assert running.https_address is not None
    url = "https://{}:{}".format(*running.https_address)
    with httpx.Client(base_url=url, verify=authority.client(), timeout=60) as api:
        answer = api.post("/api/login", json={"username": "guest", "password": "guest"})
        assert answer.status_code == 200
        assert "Secure" in answer.headers["set-cookie"]
        assert answer.headers["strict-transport-security"].startswith("max-age=")
        listeners = api.get("/api/overview", auth=("guest", "guest")).json()["listeners"]
    assert {one["protocol"] for one in listeners} == {"amqp", "http", "amqp/ssl", "https"}


def test_health_check_reports_a_certificate_that_expires_soon(running: leveret.Broker) -> None:
    path = "/api/health/checks/certificate-expiration"
    with httpx.Client(base_url=running.http_url, auth=("guest", "guest"), timeout=60) as api:
        assert api.get(f"{path}/1/days").status_code == 200
        answer = api.get(f"{path}/2000/years")
    assert answer.status_code == 503
    assert "expires in" in answer.json()["reason"]


def test_only_tls_1_2_and_1_3(running: leveret.Broker, authority: Authority) -> None:
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = authority.client()
        context.minimum_version = context.maximum_version = version
        assert _certificate(running, context)
    old = authority.client()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError):
        _certificate(running, old)


def test_ciphers_are_forward_secret_and_authenticated(authority: Authority) -> None:
    context = make_context(leveret.in_process_settings(**authority.settings))
    names = [one["name"] for one in context.get_ciphers()]
    assert names
    for name in names:
        assert name.startswith(("TLS_", "ECDHE-")) and ("GCM" in name or "CHACHA20" in name), name


@pytest.mark.parametrize("said", [b"AMQP\x00\x00\x09\x01", b"GET / HTTP/1.1\r\n\r\n"])
def test_plain_client_on_the_tls_port_is_closed(running: leveret.Broker, said: bytes) -> None:
    for address in (_address(running), running.https_address):
        assert address is not None
        with socket.create_connection(address, SECONDS) as raw:
            raw.sendall(said)
            with contextlib.suppress(ConnectionError):
                while raw.recv(4096):  # perhaps an alert, then the end
                    pass


def test_tls_client_on_the_plain_port_gets_the_protocol_header(
    running: leveret.Broker,
) -> None:
    with socket.create_connection(running.amqp_address, SECONDS) as raw:
        raw.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        heard = b""
        with contextlib.suppress(ConnectionError):
            while data := raw.recv(4096):
                heard += data
    assert heard == b"AMQP\x00\x00\x09\x01"


def test_stalled_handshake_is_dropped(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leveret.broker.access.tls_listener.HANDSHAKE_SECONDS", 0.2)
    with _broker(**authority.settings) as running:
        for address in (_address(running), running.https_address):
            assert address is not None
            with (
                contextlib.suppress(ConnectionError),
                socket.create_connection(address, SECONDS) as raw,
            ):
                assert raw.recv(1) == b""


def test_running_handshakes_are_counted(authority: Authority) -> None:
    settings = {**authority.settings, "unauthenticated_max_per_address": 2}
    with _broker(**settings) as running:
        assert running.https_address is not None and running._http_start is not None
        fronts = (
            (_address(running), running.amqp.unauthenticated),
            (running.https_address, running._http_start.result().unauthenticated),
        )
        for address, unauthenticated in fronts:
            _count_handshakes(address, unauthenticated, authority)


def _count_handshakes(
    address: tuple[str, int], unauthenticated: UnauthenticatedLimits, authority: Authority
) -> None:
    silent = [socket.create_connection(address, SECONDS) for _ in range(2)]
    wait_until(lambda: len(unauthenticated) == 2)
    _is_refused(address)
    assert unauthenticated.rejected == 1
    for one in silent:
        one.close()
    wait_until(lambda: len(unauthenticated) == 0)
    assert _certificate_at(address, authority.client())
    wait_until(lambda: len(unauthenticated) == 0)


def _is_refused(address: tuple[str, int]) -> None:
    with (
        contextlib.suppress(ConnectionError),
        socket.create_connection(address, SECONDS) as refused,
    ):
        assert refused.recv(1) == b""


def test_unfinished_handshakes_do_not_block_others(
    authority: Authority,
) -> None:
    with _broker(**authority.settings, unauthenticated_max=4) as running:
        address, unauthenticated = _address(running), running.amqp.unauthenticated
        silent: list[socket.socket] = []
        while len(silent) < 4:
            silent.append(socket.create_connection(address, SECONDS))
            wait_until(lambda: len(unauthenticated) == len(silent))
        raw = socket.create_connection(address, SECONDS, source_address=("127.0.0.77", 0))
        with raw, authority.client().wrap_socket(raw, server_hostname="localhost") as other:
            other.sendall(b"AMQP\x00\x00\x09\x01")
            assert other.recv(1)
            with contextlib.suppress(ConnectionError):
                assert silent[0].recv(1) == b""  # the oldest one
        for one in silent:
            one.close()
        wait_until(
            lambda: not len(unauthenticated) and not sum(map(len, running.amqp.tls_listeners))
        )


def test_connection_is_counted_once_after_its_handshake(authority: Authority) -> None:
    settings = {**authority.settings, "connection_max": 1, "unauthenticated_max": 1}
    with _broker(**settings) as running:
        for _ in range(2):
            connection = _pika(running, authority.client())
            assert len(running.amqp.unauthenticated) == 0 and len(running.amqp.connections) == 1
            _is_refused(_address(running))
            connection.close()
            wait_until(lambda: not running.amqp.connections)


def test_unauthenticated_peer_is_closed_without_waiting_for_close_notify(
    authority: Authority,
) -> None:
    """asyncio waits up to 30 s for the peer's close_notify, but not before login."""
    with (
        _broker(**authority.settings, handshake_timeout=0.2) as running,
        socket.create_connection(_address(running), SECONDS) as raw,
        authority.client().wrap_socket(raw, server_hostname="localhost"),
    ):
        wait_until(lambda: len(running.amqp.connections) == 1)
        wait_until(lambda: not running.amqp.connections and not len(running.amqp.unauthenticated))


def test_stop_does_not_wait_for_handshakes(authority: Authority) -> None:
    with _broker(**authority.settings) as running:
        silent = socket.create_connection(_address(running), SECONDS)
        wait_until(lambda: len(running.amqp.tls_listeners[0]) == 1)
    with silent, contextlib.suppress(ConnectionError):
        assert silent.recv(1) == b""


def test_failed_handshake_is_logged(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    # Uses a new broker: after another failure, the line would be delayed by the rate limit.
    with _broker(**authority.settings) as running, caplog.at_level("WARNING"):
        with pytest.raises(ssl.SSLError):
            _certificate(running, ssl.create_default_context())
        wait_until(lambda: "TLS handshake with 127.0.0.1 failed" in caplog.text)


# Renewal -----------------------------------------------------------------------------------------


def test_changed_files_are_loaded_and_open_connections_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leveret.tls.CHECK_SECONDS", 0.02)
    own = Authority(tmp_path)
    with _broker(**own.settings) as running:
        amqps, https = _certificates(running, own.client())
        assert amqps == https
        connection = _pika(running, own.client())
        own.issue()
        wait_until(lambda: amqps not in _certificates(running, own.client()))
        connection.channel().queue_declare("still", exclusive=True)
        connection.close()


def test_mismatched_files_change_nothing(tmp_path: Path) -> None:
    own = Authority(tmp_path)
    with _broker(**own.settings) as running:
        before, tls = _certificates(running, own.client()), running.tls
        assert tls is not None
        for broken in (b"", b"nonsense", trustme.CA().issue_cert("x").private_key_pem.bytes()):
            own.key.write_bytes(broken)
            assert tls.reload() is False
            assert _certificates(running, own.client()) == before
        own.issue()
        assert tls.reload() is True
        assert before[0] not in _certificates(running, own.client())


def test_sighup_renews_the_certificate(tmp_path: Path) -> None:
    own = Authority(tmp_path)
    environment = {
        "LEVERET_TLS_CERT": str(own.cert),
        "LEVERET_TLS_KEY": str(own.key),
        "LEVERET_AMQPS_PORT": "0",
        "LEVERET_HTTPS_PORT": "0",
        "LEVERET_HTTP_ENABLED": "false",
    }
    with running_leveret(environment=environment) as target:
        port = target.amqps_port

        def shown() -> bytes:
            with (
                socket.create_connection((target.host, port), SECONDS) as raw,
                own.client().wrap_socket(raw, server_hostname="localhost") as wrapped,
            ):
                return wrapped.getpeercert(binary_form=True) or b""

        before = shown()
        own.issue()
        os.kill(target.pid, signal.SIGHUP)
        wait_until(lambda: shown() != before)


def _no_file(own: Authority) -> Path:
    own.key.unlink()
    return own.key


def _garbage(own: Authority) -> Path:
    own.cert.write_text("garbage")
    return own.cert


def _other_pair(own: Authority) -> Path:
    own.key.write_bytes(own.ca.issue_cert("localhost").private_key_pem.bytes())
    return own.key


def _no_authority(own: Authority) -> Path:
    own.ca_file.write_text("garbage")
    return own.ca_file


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_no_file, "k.pem cannot be used: No such file or directory"),
        (_garbage, "k.pem cannot be used: not PEM, or incomplete"),
        (_other_pair, "k.pem cannot be used: the key does not belong to the certificate"),
        (_no_authority, "ca.pem cannot be used: it contains no certificate"),
    ],
)
def test_unusable_file_is_logged_with_the_reason(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[Authority], Path],
    words: str,
) -> None:
    own = Authority(tmp_path)
    asked = {"tls_ca": str(own.ca_file), "tls_verify": "optional"}
    tls = Tls(leveret.in_process_settings(**{**own.settings, **asked}))
    before = tls.context
    named = spoil(own)
    assert not tls.reload() and tls.context is before
    (line,) = [one.getMessage() for one in caplog.records if one.name == "leveret.tls"]
    assert line.startswith("cannot reload the certificate, the old one stays in use: ")
    assert str(named) in line and line.endswith(words)


# Client certificates -----------------------------------------------------------------------------


def test_client_certificate_gives_the_user_name(authority: Authority) -> None:
    settings = {
        **authority.settings, "tls_ca": str(authority.ca_file),
        "tls_verify": "required", "tls_login": "common_name", "plain_enabled": False,
    }  # fmt: skip
    with _broker(**settings) as running:
        assert running.http_address is None and running.url.startswith("amqps://")
        external = ExternalCredentials()
        connection = _pika(running, authority.client("guest"), credentials=external)
        (row,) = running.broker.connections
        info = row.info()
        assert info.auth_mechanism == "EXTERNAL" and info.user == "guest"
        assert info.peer_cert_subject is not None
        assert info.peer_cert_subject.startswith("CN=guest,")
        connection.close()
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            _pika(running, authority.client("nobody-here"), credentials=external)
        with pytest.raises((pika.exceptions.AMQPConnectionError, ssl.SSLError)):
            _pika(running, authority.client())
        stranger = trustme.CA()
        context = authority.client()
        stranger.issue_cert("localhost", common_name="guest").configure_cert(context)
        with pytest.raises((pika.exceptions.AMQPConnectionError, ssl.SSLError)):
            _pika(running, context, credentials=external)


def test_removed_authority_is_no_longer_trusted(tmp_path: Path) -> None:
    own, other = Authority(tmp_path), trustme.CA()
    both = own.ca.cert_pem.bytes() + other.cert_pem.bytes()
    own.ca_file.write_bytes(both)
    settings = {**own.settings, "tls_ca": str(own.ca_file), "tls_verify": "required"}
    theirs = own.client()
    other.issue_cert("localhost", common_name="x").configure_cert(theirs)
    with _broker(**settings) as running:
        open_connection = _pika(running, theirs)
        _pika(running, own.client("y")).close()
        own.ca_file.write_bytes(own.ca.cert_pem.bytes())
        assert running.tls is not None and running.tls.reload()
        with pytest.raises((pika.exceptions.AMQPConnectionError, ssl.SSLError)):
            _pika(running, theirs)
        _pika(running, own.client("y")).close()
        open_connection.channel().close()  # the open connection continues
        open_connection.close()


def test_external_is_not_offered_without_a_certificate(
    running: leveret.Broker, authority: Authority
) -> None:
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        _pika(running, authority.client("guest"), credentials=ExternalCredentials())


def test_names_in_a_certificate() -> None:
    secured = TlsInfo(common_name="ann", subject="CN=ann,O=x")
    assert secured.user("common_name") == "ann"
    assert secured.user("distinguished_name") == "CN=ann,O=x"
    assert secured.user("off") == ""


def _subject(*parts: str) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Return a subject in Python's form; `+` separates attributes of one part."""
    long = {"CN": "commonName", "O": "organizationName"}
    return tuple(
        tuple((long[name], value) for name, _, value in (one.partition("=") for one in pairs))
        for pairs in (part.split("|") for part in parts)
    )


@pytest.mark.parametrize(
    ("parts", "written"),
    [
        (("O=Corp", "CN=ann"), "CN=ann,O=Corp"),
        (("CN=ann,O=Corp",), r"CN=ann\,O=Corp"),
        (("O=Corp|CN=ann",), "O=Corp+CN=ann"),
        (("O=Corp+CN=ann",), r"O=Corp\+CN=ann"),
        (("CN= a b ",), r"CN=\ a b\ "),
        (("CN=#a#",), r"CN=\#a#"),
        (('CN=a\0\n\\"<>;',), 'CN=a\\00\\0A\\\\\\"\\<\\>\\;'),
        (("CN= ",), r"CN=\ "),
        (("CN=",), "CN="),
        ((), ""),
    ],
)
def test_special_characters_in_a_certificate_are_escaped(
    parts: tuple[str, ...], written: str
) -> None:
    assert distinguished_name(_subject(*parts)) == written


# Settings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tls_cert": "/nowhere/c.pem", "tls_key": "/nowhere/k.pem"}, "cannot be used: No such"),
        ({"tls_cert": "/nowhere/c.pem"}, "TLS needs both tls_cert and tls_key; set tls_key"),
        ({"tls_key": "/nowhere/k.pem"}, "set tls_cert"),
        ({"plain_enabled": False}, "set tls_cert and tls_key"),
        ({"tls_ca": "/nowhere/a.pem"}, "set tls_cert and tls_key"),
        ({"tls_verify": "required"}, "set tls_cert and tls_key"),
        ({"tls_login": "common_name"}, "set tls_cert and tls_key"),
        ({"tls_cert": "c", "tls_key": "k", "tls_verify": "required"}, "needs tls_ca"),
        ({"tls_cert": "c", "tls_key": "k", "tls_login": "common_name"}, "needs tls_verify"),
    ],
)
async def test_inconsistent_settings_stop_the_start(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(LaunchError, match=words):
        async with leveret.Broker(leveret.in_process_settings(**changes)):
            await asyncio.sleep(0)
