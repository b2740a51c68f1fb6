"""The scaling curves as one SVG file: a panel per series, a line per broker.

The points of a series grow by factors, so they stand at equal distances, whatever their values.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.brokers import Kind
from benchmarks.scaling import Curve

_WIDTH, _LEFT, _RIGHT = 900, 90, 150
_PANEL, _TOP, _PLOT = 300, 40, 200
_LINES = 4
_STYLE = """
    text { font: 13px system-ui, sans-serif; fill: #374151 }
    .title { font-weight: 600; font-size: 15px }
    .grid { stroke: #d1d5db; stroke-width: 1 }
    polyline { fill: none; stroke-width: 2 }
    .leveret { stroke: #2f855a } circle.leveret { fill: #2f855a }
    .rabbitmq { stroke: #c05621 } circle.rabbitmq { fill: #c05621 }
    @media (prefers-color-scheme: dark) { text { fill: #d1d5db } .grid { stroke: #374151 } }
"""


@dataclass(frozen=True, slots=True)
class Scale:
    """The vertical axis, from `low` to `high`."""

    low: float
    high: float
    is_logarithmic: bool

    def y(self, value: float) -> float:
        if self.is_logarithmic:
            span = math.log(self.high / self.low)
            share = math.log(max(value, self.low) / self.low) / span
        else:
            share = (value - self.low) / (self.high - self.low)
        return _TOP + _PLOT * (1 - share)

    def ticks(self) -> list[float]:
        if self.is_logarithmic:
            powers = range(round(math.log10(self.low)), round(math.log10(self.high)) + 1)
            return [10.0**power for power in powers]
        return [self.low + (self.high - self.low) * n / _LINES for n in range(_LINES + 1)]


def svg(curves: Sequence[Curve], versions: Mapping[Kind, str]) -> str:
    drawn = [curve for curve in curves if curve.kinds]
    height = len(drawn) * _PANEL + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<style>{_STYLE}</style>",
    ]
    for number, curve in enumerate(drawn):
        parts.append(f'<g transform="translate(0 {number * _PANEL})">')
        parts += _panel(curve, versions)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(curve: Curve, versions: Mapping[Kind, str]) -> list[str]:
    xs = {x: _x(index, len(curve.results)) for index, x in enumerate(curve.results)}
    scale = _scale(curve)
    parts = [f'<text class="title" x="8" y="22">{escape(curve.series.title)}: messages/s</text>']
    for value in scale.ticks():
        at = scale.y(value)
        parts += [
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>',
            f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{short(value)}</text>',
        ]
    for x, at in xs.items():
        text = f'<text x="{at:.1f}" y="{_TOP + _PLOT + 18}" text-anchor="middle">{short(x)}</text>'
        parts.append(text)
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    below = _TOP + _PLOT + 38
    axis = escape(curve.series.axis)
    parts.append(f'<text x="{middle:.1f}" y="{below}" text-anchor="middle">{axis}</text>')
    for kind in curve.kinds:
        parts += _line(curve, kind, xs, scale, versions.get(kind, kind.label))
    return parts


def _scale(curve: Curve) -> Scale:
    rates = [rate for kind in curve.kinds for rate in curve.points(kind).values()]
    top = 10.0 ** math.ceil(math.log10(max(rates)))
    if curve.series.is_logarithmic:
        return Scale(10.0 ** math.floor(math.log10(min(rates))), top, is_logarithmic=True)
    step = next(step for step in (0.2, 0.4, 0.6, 0.8, 1.0) if max(rates) <= top * step)
    return Scale(0.0, top * step, is_logarithmic=False)


def _x(index: int, count: int) -> float:
    room = _WIDTH - _LEFT - _RIGHT - 40
    return _LEFT + 20 + room * (index / (count - 1) if count > 1 else 0.5)


def _line(curve: Curve, kind: Kind, xs: Mapping[int, float], scale: Scale, label: str) -> list[str]:
    points = [(xs[x], scale.y(rate)) for x, rate in curve.points(kind).items()]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    end_x, end_y = points[-1]
    return [
        f'<polyline class="{kind}" points="{path}"/>',
        *(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in points),
        f'<text x="{end_x + 10:.1f}" y="{end_y + 4:.1f}">{escape(label)}</text>',
    ]


def short(value: float) -> str:
    """A number for an axis: 0, 16, 15k, 10M, or 64 KiB if it is a power of two."""
    is_binary = value >= 1024 and value % 1024 == 0
    units = ((1 << 20, " MiB"), (1 << 10, " KiB")) if is_binary else ((10**6, "M"), (10**3, "k"))
    for size, unit in units:
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
