"""What TLS says about a peer: its protocol and, if it showed one, its certificate.

Distinguished names are written as RabbitMQ writes them (RFC 4514): what separates one name from the
next is escaped inside of one, so that nobody can have a value that reads as further names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_SHORT = {
    "commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU",
    "countryName": "C", "stateOrProvinceName": "ST", "localityName": "L",
}  # fmt: skip
_SPECIAL = frozenset(',+"\\<>;')


@dataclass(frozen=True, slots=True)
class Secured:
    """One connection's TLS. Names are empty without a certificate of the peer."""

    protocol: str = ""
    cipher: str = ""
    common_name: str = ""
    subject: str = ""
    issuer: str = ""
    validity: str = ""

    def user(self, login: str) -> str:
        """The user this certificate stands for, as the setting `tls_login` says."""
        return {"common_name": self.common_name, "distinguished_name": self.subject}.get(login, "")


def maybe_secured(transport: Any) -> Secured | None:
    found = transport.get_extra_info("ssl_object")
    if found is None:
        return None
    certificate = transport.get_extra_info("peercert") or {}
    subject = certificate.get("subject", ())
    return Secured(
        protocol=found.version() or "",
        cipher=(found.cipher() or ("",))[0],
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
    """The most particular name first."""
    return ",".join("+".join(map(_written, part)) for part in reversed(parts))


def _written(pair: tuple[str, str]) -> str:
    name, value = pair
    last = len(value) - 1
    return f"{_SHORT.get(name, name)}=" + "".join(
        _escaped(one, at == 0, at == last) for at, one in enumerate(value)
    )


def _escaped(one: str, is_first: bool, is_last: bool) -> str:
    if one < " " or one == "\x7f":
        return f"\\{ord(one):02X}"
    is_at_an_end = (one == " " and (is_first or is_last)) or (one == "#" and is_first)
    return f"\\{one}" if one in _SPECIAL or is_at_an_end else one
