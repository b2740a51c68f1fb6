"""A bar chart of the ratios as one SVG file: a bar per row, a line at 1x, a tick at the goal."""

import re
from collections.abc import Sequence
from html import escape

from benchmarks.runner import Row

_WIDTH, _LABEL, _BAR, _GAP, _TOP = 900, 300, 18, 10, 46
_BAR_AREA = _WIDTH - _LABEL - 90
_MAX_RATIO = 10.0
_STYLE = """
    text { font: 13px system-ui, sans-serif; fill: #374151 }
    .title { font-weight: 600; font-size: 15px }
    .met { fill: #2f855a } .missed { fill: #c05621 } .plain { fill: #64748b }
    .one { stroke: #9ca3af; stroke-dasharray: 3 3 } .goal { stroke: #111827; stroke-width: 2 }
    @media (prefers-color-scheme: dark) { text { fill: #d1d5db } .goal { stroke: #f9fafb } }
"""


def svg(rows: Sequence[Row]) -> str:
    """The chart as SVG text. Ratios above ten have a bar of full length and their number."""
    drawn = [row for row in rows if row.ratio is not None]
    height = _TOP + len(drawn) * (_BAR + _GAP) + 20
    longest = min(max((row.ratio or 0 for row in drawn), default=1.0), _MAX_RATIO)
    scale = _BAR_AREA / max(longest, 2.0)
    one = _LABEL + scale
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<style>{_STYLE}</style>",
        '<text class="title" x="8" y="20">How many times better than RabbitMQ, same run</text>',
        f'<line class="one" x1="{one:.1f}" x2="{one:.1f}" y1="{_TOP - 10}" y2="{height - 12}"/>',
        f'<text x="{one - 8:.1f}" y="{_TOP - 14}">1x</text>',
    ]
    for index, row in enumerate(drawn):
        parts += _bar(row, _TOP + index * (_BAR + _GAP), scale)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bar(row: Row, top: int, scale: float) -> list[str]:
    ratio = row.ratio or 0.0
    length = min(ratio * scale, _BAR_AREA)
    kind = {True: "met", False: "missed", None: "plain"}[row.met]
    middle = top + _BAR - 5
    parts = [
        f'<text x="{_LABEL - 8}" y="{middle}" text-anchor="end">{escape(row.label)}</text>',
        f'<rect class="{kind}" x="{_LABEL}" y="{top}" width="{length:.1f}" height="{_BAR}"/>',
        f'<text x="{_LABEL + length + 6:.1f}" y="{middle}">{ratio:.2f}x</text>',
    ]
    goal = re.match(r"≥ ([0-9.]+)x", row.goal)
    if goal:
        at = _LABEL + min(float(goal[1]) * scale, _BAR_AREA)
        parts.append(
            f'<line class="goal" x1="{at:.1f}" x2="{at:.1f}" y1="{top - 3}" y2="{top + _BAR + 3}"/>'
        )
    return parts
