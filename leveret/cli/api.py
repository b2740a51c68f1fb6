"""Client of the HTTP API: paths from names, JSON in and out, errors as sentences.

Invariant: every call either returns decoded JSON (None for an empty body) or raises a `CliError`
with one sentence and the exit code for its cause. Names become single path segments whatever they
contain; the vhost `/` becomes `%2F`.

One client per command, used by the main thread only.
"""

from __future__ import annotations

import base64
import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from leveret.cli.errors import CliError, ExitCode

Json = Any  # decoded JSON: the server defines its structure, each command uses what it knows

MAX_WAIT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Target:
    """The server to talk to, and the login."""

    url: str
    user: str
    password: str
    timeout: float = 60.0
    ca_file: str | None = None
    is_insecure: bool = False

    @property
    def shown(self) -> str:
        """The URL for messages, without a user and password in it."""
        return re.sub(r"(?<=//)[^/?#]*@", "", self.url)


@dataclass(frozen=True, slots=True)
class InVhost:
    """An object that may be missing because its virtual host is; `text` names it in messages."""

    text: str
    vhost: str

    def __str__(self) -> str:
        return self.text


What = str | InVhost | None
"""The object of a request, for the error that says that it does not exist."""


def segment(name: str) -> str:
    """Return a name as one path segment; `.` and `..` are escaped, or URL rules would drop them."""
    if not name:
        raise CliError("a name must not be empty.", ExitCode.USAGE)
    return (
        name.replace(".", "%2E")
        if set(name) == {"."}
        else quote(name, safe="", errors="surrogateescape")
    )


def path(*names: str) -> str:
    """`path("queues", "/", "a b")` is `queues/%2F/a%20b`."""
    return "/".join(segment(name) for name in names)


class Api:
    """A connection to one server's `/api`."""

    def __init__(self, target: Target, transport: httpx.BaseTransport | None = None) -> None:
        self._target = target
        self._base = target.url.rstrip("/").removesuffix("/api") + "/api"
        self._client = httpx.Client(
            auth=(target.user, target.password),
            timeout=target.timeout,
            transport=transport,
            verify=_tls(target),
            trust_env=False,  # a proxy in the environment is not meant for the broker
        )

    def close(self) -> None:
        self._client.close()

    def get(self, where: str, *, what: What = None, **query: object) -> Json:
        return self._call("GET", where, what=what, query=query)

    def put(self, where: str, body: Json = None, *, what: What = None) -> Json:
        return self._call("PUT", where, what=what, body=body)

    def post(
        self,
        where: str,
        body: Json = None,
        *,
        what: What = None,
        wait: float = 0.0,
        query: Mapping[str, object] | None = None,
    ) -> Json:
        """POST; `wait` is how long the server may delay the answer (long poll)."""
        return self._call("POST", where, what=what, query=query, body=body, wait=wait)

    def delete(
        self,
        where: str,
        *,
        what: What = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, object] | None = None,
    ) -> Json:
        return self._call("DELETE", where, what=what, query=query, headers=headers)

    def poll(self, where: str, *, what: What, wait: float, **query: object) -> Json:
        """GET whose answer the server may delay for `wait` seconds (long poll)."""
        return self._call("GET", where, what=what, query={**query, "wait": wait}, wait=wait)

    def exists(self, where: str) -> bool:
        try:
            self.get(where)
        except CliError as error:
            if error.code is ExitCode.NOT_FOUND:
                return False
            raise
        return True

    def _call(
        self,
        method: str,
        where: str,
        *,
        what: What = None,
        query: Mapping[str, object] | None = None,
        body: Json = None,
        headers: Mapping[str, str] | None = None,
        wait: float = 0.0,
    ) -> Json:
        params = {key: _query(value) for key, value in (query or {}).items() if value is not None}
        # RabbitMQ refuses a PUT or POST without a JSON body.
        content = None if method in {"GET", "DELETE"} else json.dumps(body or {}).encode()
        fields = {key.encode(): _one_line(value) for key, value in (headers or {}).items()}
        fields |= {b"content-type": b"application/json"} if content else {}
        try:
            response = self._client.request(
                method,
                f"{self._base}/{where}",
                params=params or None,
                content=content,
                headers=fields,
                timeout=self._target.timeout + wait,
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from None
        if not response.is_success:
            raise self._refused(response, where, what)
        return self._decoded(response)

    def _decoded(self, response: httpx.Response) -> Json:
        if not response.content:
            return None
        try:
            return response.json()
        except ValueError:
            text = f"the server at {self._target.shown} is not a RabbitMQ-compatible HTTP API."
            raise CliError(text) from None

    def _unreachable(self, error: Exception) -> CliError:
        url = self._target.shown
        if isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL):
            return CliError(
                f"{url!r} is not a valid URL; use one such as http://127.0.0.1:15672.",
                ExitCode.USAGE,
            )
        if "WRONG_VERSION_NUMBER" in str(error):
            text = f"{url} does not use TLS; use http instead of https in the URL."
            return CliError(text, ExitCode.UNAVAILABLE)
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return CliError(_not_trusted(url, str(error)), ExitCode.UNAVAILABLE)
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            text = f"no server answers at {url} ({error}); is `leveret serve` running there?"
            return CliError(text, ExitCode.UNAVAILABLE)
        if isinstance(error, httpx.TimeoutException):
            text = f"{url} did not answer within {self._target.timeout:g} s."
            return CliError(text, ExitCode.TIMEOUT)
        text = f"the connection to {url} failed: {str(error).rstrip('.')}"
        if isinstance(error, httpx.RemoteProtocolError):
            text += "; is this its HTTP port (by default 15672), and does it use http, not https?"
        return CliError(text, ExitCode.UNAVAILABLE)

    def _refused(self, response: httpx.Response, where: str, what: What) -> CliError:
        reason, status = _reason(response), response.status_code
        user, url = self._target.user, self._target.shown
        if status == 401 and reason in {"", "Login failed"}:
            text = f"{url} does not accept this password for user '{user}'."
            return CliError(text, ExitCode.NO_PERMISSION)
        if status in {401, 403}:
            return CliError(f"user '{user}' may not do this: {reason}", ExitCode.NO_PERMISSION)
        # RabbitMQ answers 400 for a publish to a missing exchange and for a missing user.
        if status == 404 or (status == 400 and "not_found" in reason.lower()):
            missing = self.missing(what)
            text = f"there is no {missing}." if missing else f"{url} has no /api/{where}."
            return CliError(text, ExitCode.NOT_FOUND)
        if status < 400:
            return CliError(f"{url} redirects the request ({status}); is the URL right?")
        if status >= 500:
            return CliError(f"the server failed ({status}): {reason or response.reason_phrase}")
        return CliError(f"refused: {reason or response.reason_phrase}")

    def missing(self, what: What) -> str | None:
        """Return what does not exist: the object itself, or its virtual host."""
        if not isinstance(what, InVhost):
            return what
        try:
            has_vhost = self.exists(path("vhosts", what.vhost))
        except CliError:  # without permission to list virtual hosts
            has_vhost = True
        return what.text if has_vhost else f"vhost '{what.vhost}'"


def _not_trusted(url: str, error: str) -> str:
    """Extract OpenSSL's reason from between the name of the error and its source line."""
    why = error.partition("verify failed: ")[2].rpartition(" (_ssl")[0] or error
    hint = "" if "mismatch" in why else "; --ca-file adds the authority that signed it"
    return f"the certificate of {url} is not trusted: {why.rstrip('.')}{hint}."


def _reason(response: httpx.Response) -> str:
    try:
        answer = response.json()
    except ValueError:
        return ""
    if not isinstance(answer, dict):
        return ""
    reason = answer.get("reason") or answer.get("error") or answer.get("detail") or ""
    return reason if isinstance(reason, str) else json.dumps(reason)


def _one_line(text: str) -> bytes:
    return " ".join(text.split()).encode("utf-8", "surrogateescape")


def _query(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _tls(target: Target) -> ssl.SSLContext | bool:
    if not target.url.lower().startswith("https:"):
        return (
            False  # loading the system's certificates takes 20 ms, which plain HTTP does not need
        )
    try:
        context = ssl.create_default_context(cafile=target.ca_file)
    except (OSError, ssl.SSLError) as error:
        why = (
            "it contains no PEM certificate" if isinstance(error, ssl.SSLError) else error.strerror
        )
        raise CliError(f"{target.ca_file} cannot be used: {why}.", ExitCode.USAGE) from None
    if target.is_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def encoded(content: bytes) -> tuple[str, str]:
    """Return bytes as JSON text: (text, "string") if they are UTF-8, else base64."""
    try:
        return content.decode("utf-8"), "string"
    except UnicodeDecodeError:
        return base64.b64encode(content).decode("ascii"), "base64"


def decoded(text: str | None, encoding: str | None) -> bytes:
    """The reverse of `encoded`."""
    if encoding == "base64":
        return base64.b64decode(text or "")
    return (text or "").encode("utf-8")
