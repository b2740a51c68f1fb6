"""Durations and sizes written as text: parsing and formatting.

Three syntaxes are in use:

- settings (`maybe_duration`, `maybe_size`): a number, or a number with an optional unit in any case
  (`500ms`, `12h`, `7d`, `256MiB`, `1GB`); spaces are allowed;
- ages of log records (`maybe_age_ms`), as RabbitMQ defines `x-max-age`: a positive whole number
  directly followed by one of Y, M, D, h, m, s (case-sensitive: M is a month, m a minute);
- intervals (`maybe_interval`): a positive number followed by one of s, m, h, d.

A `maybe_` function returns None for a value it does not accept; the caller words the error. Pure
functions. Patterns are compiled when first used, because every start imports this module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_SIZE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_DURATION_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_INTERVAL_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_AGE_UNITS = {"Y": 365 * 86_400, "M": 30 * 86_400, "D": 86_400, "h": 3_600, "m": 60, "s": 1}
_QUANTITY = r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*"
_AGE = r"([0-9]{1,12})([YMDhms])"


def maybe_size(raw: object) -> float | None:
    """Bytes of a setting such as 1048576, "256MiB" or "1GB"."""
    return _maybe_setting(raw, _SIZE_UNITS)


def maybe_duration(raw: object) -> float | None:
    """Seconds of a setting such as 10, "500ms", "12h" or "7d"."""
    return _maybe_setting(raw, _DURATION_UNITS)


def _maybe_setting(raw: object, units: Mapping[str, float]) -> float | None:
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        return raw
    match = re.fullmatch(_QUANTITY, raw) if isinstance(raw, str) else None
    if match is None or match[2].lower() not in units:
        return None
    return float(match[1]) * units[match[2].lower()]


def maybe_interval(text: str) -> float | None:
    """Seconds of a positive interval such as `90s`, `15m`, `1h` or `1d`."""
    match = re.fullmatch(_QUANTITY, text)
    if match is None or match[2] not in _INTERVAL_UNITS or not float(match[1]):
        return None
    return float(match[1]) * _INTERVAL_UNITS[match[2]]


def maybe_age_ms(text: str) -> int | None:
    """Milliseconds of an age such as `7D` or `12h`."""
    match = re.fullmatch(_AGE, text)
    if match is None or int(match[1]) == 0:
        return None
    return int(match[1]) * _AGE_UNITS[match[2]] * 1000


def format_age(age_ms: int) -> str:
    """An age in the largest unit that expresses it exactly; `maybe_age_ms` parses it."""
    seconds = age_ms // 1000
    unit = next(name for name, size in _AGE_UNITS.items() if seconds % size == 0)
    return f"{seconds // _AGE_UNITS[unit]}{unit}"


def format_size(size: int) -> str:
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)


def format_duration(seconds: float) -> str:
    for unit, name in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= unit and seconds % unit == 0:
            return f"{seconds / unit:g}{name}"
    return f"{seconds:g}s" if seconds >= 1 else f"{seconds * 1000:g}ms"


def approximate_size(size: float) -> str:
    """A size rounded for people, in powers of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
