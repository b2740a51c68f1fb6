"""What TLS says about a peer: its protocol and, if it showed one, its certificate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_SHORT = {
    "commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU",
    "countryName": "C", "stateOrProvinceName": "ST", "localityName": "L",
}  # fmt: skip


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
    subject = _names(certificate.get("subject", ()))
    return Secured(
        protocol=found.version() or "",
        cipher=(found.cipher() or ("",))[0],
        common_name=next((value for name, value in subject if name == "CN"), ""),
        subject=_text(subject),
        issuer=_text(_names(certificate.get("issuer", ()))),
        validity=" - ".join(
            certificate[key] for key in ("notBefore", "notAfter") if key in certificate
        ),
    )


def _names(parts: Any) -> list[tuple[str, str]]:
    return [(_SHORT.get(name, name), value) for part in parts for name, value in part]


def _text(names: list[tuple[str, str]]) -> str:
    """As RabbitMQ writes it: the most particular name first."""
    return ",".join(f"{name}={value}" for name, value in reversed(names))
