"""What TLS knows about a peer: the protocol and, if it sent one, its certificate.

Distinguished names are written as RabbitMQ writes them (RFC 4514). Separators inside a value are
escaped, so that a value cannot be read as further names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_ABBREVIATIONS = {
    "commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU",
    "countryName": "C", "stateOrProvinceName": "ST", "localityName": "L",
}  # fmt: skip
_SPECIAL = frozenset(',+"\\<>;')


@dataclass(frozen=True, slots=True)
class TlsInfo:
    """The TLS state of one connection. Names are empty if the peer sent no certificate."""

    protocol: str = ""
    cipher: str = ""
    common_name: str = ""
    subject: str = ""
    issuer: str = ""
    validity: str = ""

    def user(self, login: str) -> str:
        """The user that the certificate names, according to the setting `tls_login`."""
        return {"common_name": self.common_name, "distinguished_name": self.subject}.get(login, "")


def maybe_tls_info(transport: Any) -> TlsInfo | None:
    ssl_object = transport.get_extra_info("ssl_object")
    if ssl_object is None:
        return None
    certificate = transport.get_extra_info("peercert") or {}
    subject = certificate.get("subject", ())
    return TlsInfo(
        protocol=ssl_object.version() or "",
        cipher=(ssl_object.cipher() or ("",))[0],
        common_name=",".join(
            value for part in subject for name, value in part if name == "commonName"
        ),
        subject=distinguished_name(subject),
        issuer=distinguished_name(certificate.get("issuer", ())),
        validity=" - ".join(
            certificate[key] for key in ("notBefore", "notAfter") if key in certificate
        ),
    )


def distinguished_name(parts: Any) -> str:
    """The name in RFC 4514 order: the most specific part first."""
    return ",".join("+".join(map(_attribute, part)) for part in reversed(parts))


def _attribute(pair: tuple[str, str]) -> str:
    name, value = pair
    last = len(value) - 1
    return f"{_ABBREVIATIONS.get(name, name)}=" + "".join(
        _escaped(char, at == 0, at == last) for at, char in enumerate(value)
    )


def _escaped(char: str, is_first: bool, is_last: bool) -> str:
    if char < " " or char == "\x7f":
        return f"\\{ord(char):02X}"
    is_special_here = (char == " " and (is_first or is_last)) or (char == "#" and is_first)
    return f"\\{char}" if char in _SPECIAL or is_special_here else char
