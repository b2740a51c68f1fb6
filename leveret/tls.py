"""TLS: one context for all listeners, which can be replaced while they listen.

TLS 1.2 and 1.3 with forward secrecy and authenticated ciphers only. Changed files are loaded into a
new context first: a pair that does not fit together, because only one of two files has been
replaced so far, changes nothing, is logged, and is tried again. New handshakes use the new context,
with the new certificate and exactly the authorities in `tls_ca`; open connections continue.

Runs on the event loop, which checks the files every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl

from leveret.config import Settings

log = logging.getLogger("leveret.tls")

CHECK_SECONDS = 5.0
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
_VERIFY = {
    "none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED,
}  # fmt: skip
_REASONS = {
    "KEY_VALUES_MISMATCH": "the key does not belong to the certificate",
    "NO_CERTIFICATE_OR_CRL_FOUND": "it contains no certificate",
}


class TlsError(Exception):
    """TLS cannot be set up; the text is one sentence for people."""


class Tls:
    def __init__(self, settings: Settings) -> None:
        _check(settings)
        self._settings = settings
        self._loaded_files = self._stat_files()
        self.context = make_context(settings)
        self.expires = _maybe_expiry(settings.tls_cert)
        self._timer: asyncio.TimerHandle | None = None

    def reload(self) -> bool:
        """Load the files again; on failure log an error, keep the old context, return False."""
        self._loaded_files = self._stat_files()
        try:
            self.context = make_context(self._settings)
        except TlsError as error:
            log.error("cannot reload the certificate, the old one stays in use: %s", error)
            return False
        self.expires = _maybe_expiry(self._settings.tls_cert)
        log.info("certificate loaded from %s", self._settings.tls_cert)
        return True

    def watch(self) -> None:
        """Reload the files whenever they change, until `stop`."""
        self._timer = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check_files)

    def _check_files(self) -> None:
        try:
            if self._stat_files() != self._loaded_files:
                self.reload()
        finally:
            self.watch()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _stat_files(self) -> list[tuple[int, int, int] | None]:
        settings = self._settings
        names = (settings.tls_cert, settings.tls_key, settings.tls_ca)
        return [_maybe_stat(name) for name in names if name]


def _maybe_stat(name: str) -> tuple[int, int, int] | None:
    try:
        stat = os.stat(name)
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _maybe_expiry(name: str) -> float | None:
    """Return when the first certificate in a file expires, in seconds since 1970.

    Imported here because `cryptography` takes 40 to 60 ms and 10 MB: only brokers with TLS pay. It
    belongs to the extra `tls`; without it, TLS works and the expiry is not known.
    """
    try:
        from cryptography.x509 import load_pem_x509_certificate
    except ImportError:
        log.warning("nobody is warned before %s expires: `pip install 'leveret[tls]'`", name)
        return None
    try:
        with open(name, "rb") as file:
            return load_pem_x509_certificate(file.read()).not_valid_after_utc.timestamp()
    except (OSError, ValueError):
        return None


def _check(settings: Settings) -> None:
    if not settings.tls_cert or not settings.tls_key:
        missing = "tls_cert" if not settings.tls_cert else "tls_key"
        if settings.tls_cert == settings.tls_key:
            missing = "tls_cert and tls_key"
        raise TlsError(f"TLS needs both tls_cert and tls_key; set {missing}")
    if settings.tls_verify != "none" and not settings.tls_ca:
        raise TlsError(f"tls_verify is {settings.tls_verify}, which needs tls_ca")
    if settings.tls_login != "off" and settings.tls_verify == "none":
        raise TlsError(
            f"tls_login is {settings.tls_login}, which needs tls_verify = optional or required"
        )


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
    """Called by OpenSSL for an encrypted key; without it OpenSSL would ask on the terminal."""
    raise ValueError("the key is encrypted; store it without a passphrase")


def _load(context: ssl.SSLContext, settings: Settings) -> None:
    pair = f"{settings.tls_cert} and {settings.tls_key}"
    try:
        _require_readable(settings.tls_cert, settings.tls_key, settings.tls_ca)
        context.load_cert_chain(settings.tls_cert, settings.tls_key, _no_passphrase)
    except (OSError, ValueError) as error:
        raise TlsError(f"{_file_name(error) or pair} cannot be used: {_reason(error)}") from None
    try:
        if settings.tls_ca:
            context.load_verify_locations(settings.tls_ca)
    except (OSError, ValueError) as error:
        raise TlsError(f"{settings.tls_ca} cannot be used: {_reason(error)}") from None


def _require_readable(*names: str) -> None:
    """Open each file, because OpenSSL does not say which one it could not open."""
    for name in names:
        if name:
            with open(name, "rb"):
                pass


def _file_name(error: Exception) -> str:
    return str(getattr(error, "filename", None) or "")


def _reason(error: Exception) -> str:
    """Explain OpenSSL's reasons, such as `KEY_VALUES_MISMATCH`."""
    reason = getattr(error, "reason", None)
    if reason is not None or isinstance(error, ssl.SSLError):
        return _REASONS.get(reason or "", str(reason or "not PEM, or incomplete"))
    return str(getattr(error, "strerror", None) or error)
