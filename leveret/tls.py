"""TLS: one context for all listeners, which can be replaced while they listen.

TLS 1.2 and 1.3, forward secrecy and authenticated ciphers only. Files are tried on a context of
their own first: a pair that does not fit together (one file of two replaced so far) changes
nothing, is logged, and is tried again. New handshakes use a new context: another certificate, and
just the authorities that `tls_ca` names now; open connections go on. Runs on the loop; a look at
the files every few seconds is all it costs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from typing import Any

from leveret.config import Settings

log = logging.getLogger("leveret.tls")

LOOK_SECONDS = 5.0
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
_VERIFY = {
    "none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED,
}  # fmt: skip
_REASONS = {
    "KEY_VALUES_MISMATCH": "the key is not that of the certificate",
    "NO_CERTIFICATE_OR_CRL_FOUND": "no certificate is in it",
}


class TlsError(Exception):
    """TLS cannot be set up; the text is one sentence for people."""


class Tls:
    def __init__(self, settings: Settings) -> None:
        _check(settings)
        self._settings = settings
        self._seen = self._stamp()
        self.context = make_context(settings)
        self.expires = _expires(settings.tls_cert)
        self._look: asyncio.TimerHandle | None = None

    def reload(self) -> bool:
        """Take what the files hold now; False and a line in the log if that cannot be used."""
        self._seen = self._stamp()
        try:
            self.context = make_context(self._settings)
        except TlsError as error:
            log.error("the certificate stays as it was: %s", error)
            return False
        self.expires = _expires(self._settings.tls_cert)
        log.info("certificate loaded from %s", self._settings.tls_cert)
        return True

    def watch(self) -> None:
        """Look at the files again and again, until `stop`."""
        self._look = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look_again)

    def _look_again(self) -> None:
        try:
            if self._stamp() != self._seen:
                self.reload()
        finally:
            self.watch()

    def stop(self) -> None:
        if self._look is not None:
            self._look.cancel()

    def _stamp(self) -> list[tuple[int, int, int] | None]:
        settings = self._settings
        names = (settings.tls_cert, settings.tls_key, settings.tls_ca)
        return [_stat(name) for name in names if name]


def _stat(name: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(name)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _expires(name: str) -> float | None:
    """When the first certificate of a file ends, in seconds since 1970."""
    decode: Any = getattr(ssl, "_ssl")._test_decode_cert  # noqa: B009 - the only decoder there is
    try:
        return float(ssl.cert_time_to_seconds(decode(name)["notAfter"]))
    except (OSError, KeyError, ValueError):
        return None


def _check(settings: Settings) -> None:
    if not settings.tls_cert or not settings.tls_key:
        missing = "both are" if settings.tls_cert == settings.tls_key else "one of them is"
        raise TlsError(f"TLS needs tls_cert and tls_key, which go together; {missing} missing")
    if settings.tls_verify != "none" and not settings.tls_ca:
        raise TlsError(f"tls_verify is {settings.tls_verify}; that needs tls_ca")
    if settings.tls_login != "off" and settings.tls_verify == "none":
        raise TlsError(f"tls_login is {settings.tls_login}; that needs tls_verify")


def make_context(settings: Settings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    context.verify_mode = _VERIFY[settings.tls_verify]
    _load(context, settings)
    return context


def _no_passphrase() -> str:
    """Asked for by OpenSSL; without this it would ask the terminal."""
    raise ValueError("the key has a passphrase, and nobody is there to give it")


def _load(context: ssl.SSLContext, settings: Settings) -> None:
    pair = f"{settings.tls_cert} and {settings.tls_key}"
    try:
        _require_readable(settings.tls_cert, settings.tls_key, settings.tls_ca)
        context.load_cert_chain(settings.tls_cert, settings.tls_key, _no_passphrase)
    except (OSError, ValueError) as error:
        raise TlsError(f"{_place(error) or pair} cannot be used: {_why(error)}") from None
    try:
        if settings.tls_ca:
            context.load_verify_locations(settings.tls_ca)
    except (OSError, ValueError) as error:
        raise TlsError(f"{settings.tls_ca} cannot be used: {_why(error)}") from None


def _require_readable(*names: str) -> None:
    """OpenSSL does not say which of the files it could not open."""
    for name in names:
        if name:
            with open(name, "rb"):
                pass


def _place(error: Exception) -> str:
    return str(getattr(error, "filename", None) or "")


def _why(error: Exception) -> str:
    """OpenSSL's own words are `KEY_VALUES_MISMATCH`, or a line of its source."""
    reason = getattr(error, "reason", None)
    if reason is not None or isinstance(error, ssl.SSLError):
        return _REASONS.get(reason or "", str(reason or "not PEM, or only a part of it"))
    return str(getattr(error, "strerror", None) or error)
