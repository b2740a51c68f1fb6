"""What a setting's value may be: how each kind is read, and how people are told what it accepts.

Invariant: `maybe_parse` returns a value of the kind or None, and never raises, whatever it is
given: text from the environment, a TOML value, or an object from Python. `allowed` completes the
sentence "it must be ...". Plain functions without state; patterns are compiled when first used,
because importing this is part of every start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
TIB = 1024 * GIB
PIB = 1024 * TIB
CENTURY = 100 * 365 * 86400.0


@dataclass(frozen=True, slots=True)
class Kind:
    """A sort of value: how to read it (None means refused), describe it and write it."""

    maybe_parse: Callable[[object], object | None]
    allowed: str
    written: Callable[[Any], str] = str


_SIZE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
}
_DURATION_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_QUANTITY = r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*"
_LONGEST_NUMBER = 20  # int() refuses texts of thousands of digits with an exception
_TRUE, _FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}


def whole(low: int, high: int) -> Kind:
    def maybe_parse(raw: object) -> int | None:
        if isinstance(raw, str) and raw.strip().isdecimal() and len(raw) <= _LONGEST_NUMBER:
            raw = int(raw)
        if not isinstance(raw, int) or isinstance(raw, bool):
            return None
        return raw if low <= raw <= high else None

    return Kind(maybe_parse, f"a whole number from {low} to {high}")


def _maybe_quantity(raw: object, units: Mapping[str, float]) -> float | None:
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        return raw
    match = re.fullmatch(_QUANTITY, raw) if isinstance(raw, str) else None
    if match is None or match[2].lower() not in units:
        return None
    return float(match[1]) * units[match[2].lower()]


def size(low: int, high: int) -> Kind:
    def maybe_parse(raw: object) -> int | None:
        value = _maybe_quantity(raw, _SIZE_UNITS)
        return int(value) if value is not None and low <= value <= high else None

    start = f'a size such as 1048576, "256MiB" or "1GB", from {_size_text(low)}'
    return Kind(maybe_parse, f"{start} to {_size_text(high)}", _size_text)


def seconds(low: float, high: float) -> Kind:
    def maybe_parse(raw: object) -> float | None:
        value = _maybe_quantity(raw, _DURATION_UNITS)
        return float(value) if value is not None and low <= value <= high else None

    start = f'a duration such as 10, "500ms", "12h" or "7d", from {_duration_text(low)}'
    return Kind(maybe_parse, f"{start} to {_duration_text(high)}", _duration_text)


def choice(*allowed: str) -> Kind:
    def maybe_parse(raw: object) -> str | None:
        value = raw.strip().lower() if isinstance(raw, str) else None
        return value if value in allowed else None

    return Kind(maybe_parse, "one of " + ", ".join(f'"{value}"' for value in allowed))


def text(pattern: str, allowed: str) -> Kind:
    def maybe_parse(raw: object) -> str | None:
        return raw if isinstance(raw, str) and re.fullmatch(pattern, raw) else None

    return Kind(maybe_parse, allowed)


def _maybe_switch(raw: object) -> bool | None:
    if isinstance(raw, bool):
        return raw
    word = raw.strip().lower() if isinstance(raw, str) else None
    return True if word in _TRUE else False if word in _FALSE else None


def _maybe_path(raw: object) -> Path | None:
    if not isinstance(raw, str | Path) or not str(raw).strip() or "\0" in str(raw):
        return None
    try:
        return Path(raw).expanduser()
    except RuntimeError:  # "~somebody" without such a user
        return None


SWITCH = Kind(_maybe_switch, "true or false", lambda value: str(value).lower())
PATH = Kind(_maybe_path, "the path of a directory")
FILE = text(r"[^\0]*", "the path of a file, or nothing")
NONEMPTY = text(r"(?s).+", "a text that is not empty")
SHORT = text(r"(?s).{1,255}", "a text of 1 to 255 characters")
HOST = text(r"[A-Za-z0-9._:%-]+", 'a host name or address such as "127.0.0.1" or "0.0.0.0"')
HOSTS = text(
    r"[A-Za-z0-9._:, -]*", 'host names with commas between them, such as "broker.example.com"'
)
NODE = text(r"[\w.-]+@[\w.-]+", 'a name such as "leveret@localhost"')


def _size_text(value: int) -> str:
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if value >= unit and value % unit == 0:
            return f"{value // unit}{name}"
    return str(value)


def _duration_text(seconds: float) -> str:
    for unit, name in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= unit and seconds % unit == 0:
            return f"{seconds / unit:g}{name}"
    return f"{seconds:g}s" if seconds >= 1 else f"{seconds * 1000:g}ms"
