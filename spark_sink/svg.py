"""Two plots as inline SVG: lines over labelled steps, and horizontal bars. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, log10

_WIDTH, _HEIGHT = 1000, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 26, 28
_COLOURS = ("#2f7ed8", "#e08e0b", "#3a9d5d", "#c0504d", "#7e5fb0", "#6b7686")
_TICKS = 4
_LABELS = 6
_BAR = 22


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    values: Sequence[float | None]


def line_plot(labels: Sequence[str], series: Sequence[Series], unit: str) -> str:
    """One line per series; a single step is drawn as points."""
    if not labels or not series:
        return "<p>Nothing to show.</p>"
    top = nice_top(max((value or 0) for one in series for value in one.values))
    parts = [_grid(top, unit), _steps(labels)]
    for number, one in enumerate(series):
        colour = _COLOURS[number % len(_COLOURS)]
        points = [
            (_x(step, len(labels)), _y(value, top))
            for step, value in enumerate(one.values)
            if value is not None
        ]
        parts.append(_line(points, colour))
        parts.append(_legend(number, one.name, colour))
    return _svg(_HEIGHT, parts, ", ".join(one.name for one in series))


def bar_plot(labels: Sequence[str], values: Sequence[float]) -> str:
    """Horizontal bars, the longest one as wide as there is room."""
    if not labels:
        return "<p>Nothing to show.</p>"
    top = max(*values, 1)
    parts = []
    for number, (label, value) in enumerate(zip(labels, values, strict=True)):
        y = number * _BAR
        width = (_WIDTH - 420) * value / top
        parts.append(
            f'<text x="300" y="{y + 15}" text-anchor="end">{escape(_short(label))}</text>'
            f'<rect x="310" y="{y + 4}" width="{width:.1f}" height="14" rx="2"'
            f' fill="{_COLOURS[0]}"><title>{escape(label)}</title></rect>'
            f'<text x="{316 + width:.1f}" y="{y + 15}">{value:,.0f}</text>'
        )
    return _svg(len(labels) * _BAR + 6, parts, "bars")


def nice_top(value: float) -> float:
    """The next round number: 1, 2, 4, 5 or 8 times a power of ten, never below 4."""
    if value <= _TICKS:
        return _TICKS
    power = 10.0 ** int(log10(value))
    steps = (1, 2, 4, 5, 8, 10)
    return next(step * power for step in steps if step * power >= value)


def _svg(height: int, parts: Sequence[str], title: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )


def _grid(top: float, unit: str) -> str:
    lines = []
    for tick in range(_TICKS + 1):
        value = top * tick / _TICKS
        y = _y(value, top)
        lines.append(
            f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:,.0f}</text>'
        )
    return "".join(lines) + f'<text x="4" y="12">{escape(unit)}</text>'


def _steps(labels: Sequence[str]) -> str:
    every = max(1, ceil(len(labels) / _LABELS))
    return "".join(
        f'<text x="{_x(step, len(labels)):.1f}" y="{_HEIGHT - 8}" text-anchor="middle">'
        f"{escape(labels[step])}</text>"
        for step in range(0, len(labels), every)
    )


def _line(points: Sequence[tuple[float, float]], colour: str) -> str:
    if len(points) == 1:
        (x, y) = points[0]
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>'
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'


def _legend(number: int, name: str, colour: str) -> str:
    x = _LEFT + 40 + number * 130
    return (
        f'<rect x="{x}" y="4" width="10" height="10" rx="2" fill="{colour}"/>'
        f'<text x="{x + 15}" y="13">{escape(name)}</text>'
    )


def _x(step: int, steps: int) -> float:
    room = _WIDTH - _LEFT - _RIGHT - 60
    return _LEFT + 30 + (room / 2 if steps == 1 else room * step / (steps - 1))


def _y(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * value / top


def _short(text: str) -> str:
    return text if len(text) <= 44 else text[:43] + "…"
