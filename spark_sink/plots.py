"""Plots of the report as inline SVG, drawn by matplotlib. Pure functions.

The SVG has no scripts, no references to other files and no fixed text colour, so that the page's
style sheet can adapt it to a dark background.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _LINE_HEIGHT, _BAR_HEIGHT = 10.0, 2.6, 0.22
"""Inches; the page scales the plots to its width."""
_COLOURS = ("#2f7ed8", "#e08e0b", "#3a9d5d", "#c0504d", "#7e5fb0", "#6b7686")
_GRID_COLOUR = "#8b96a5"
_MAX_TIME_LABELS = 6
_MAX_LABEL_CHARACTERS = 44
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "leveret",  # the same data gives the same file
    "text.parse_math": False,  # a dollar sign in a routing key is a dollar sign
    "font.family": "sans-serif",
    "font.size": 8,
}


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    values: Sequence[float | None]


def line_plot(labels: Sequence[str], series: Sequence[Series], unit: str) -> str | None:
    """One line per series, over labelled steps; None if there is nothing to plot."""
    if not labels or not series:
        return None

    def draw(axes: Axes) -> None:
        for number, line in enumerate(series):
            points = [(x, y) for x, y in enumerate(line.values) if y is not None]
            axes.plot(
                [x for x, _ in points],
                [y for _, y in points],
                marker="o" if len(points) == 1 else "",
                color=_COLOURS[number % len(_COLOURS)],
                label=line.name,
            )
        steps = range(0, len(labels), max(1, ceil(len(labels) / _MAX_TIME_LABELS)))
        axes.set_xticks(list(steps), [labels[step] for step in steps])
        axes.set_xlim(-0.5, max(len(labels) - 0.5, 0.5))
        axes.set_ylim(bottom=0, top=max(axes.get_ylim()[1], 4))
        axes.set_ylabel(unit)
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.grid(axis="y", color=_GRID_COLOUR, alpha=0.4)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(series), frameon=False)

    return _svg(_LINE_HEIGHT, (0.07, 0.13, 0.92, 0.72), draw, ", ".join(s.name for s in series))


def bar_plot(labels: Sequence[str], values: Sequence[float]) -> str | None:
    """Horizontal bars, from top to bottom; None if there is nothing to plot."""
    if not labels:
        return None

    def draw(axes: Axes) -> None:
        rows = range(len(labels))
        bars = axes.barh(list(rows), list(values), height=0.65, color=_COLOURS[0])
        axes.bar_label(bars, labels=[f"{value:,.0f}" for value in values], padding=4)
        axes.set_yticks(list(rows), [_shortened(label) for label in labels])
        axes.set_xticks([])
        axes.set_xlim(0, max(*values, 1))
        axes.set_ylim(len(labels) - 0.5, -0.5)

    return _svg(len(labels) * _BAR_HEIGHT, (0.31, 0, 0.57, 1), draw, "bars")


def _svg(
    height: float,
    area: tuple[float, float, float, float],
    draw: Callable[[Axes], None],
    title: str,
) -> str:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # glyphs that only the browser has
        figure = Figure(figsize=(_WIDTH, height))
        axes = figure.add_axes(area)
        axes.tick_params(left=False, bottom=False)
        for spine in axes.spines.values():
            spine.set_visible(False)
        draw(axes)
        for artist in figure.findobj():
            artist.set_clip_on(False)  # clipping would refer to shapes by URL
        return _inline(_render(figure), title)


def _render(figure: Figure) -> str:
    file = io.StringIO()
    without_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(file, format="svg", transparent=True, metadata=without_metadata)
    return file.getvalue()


def _inline(document: str, title: str) -> str:
    """The <svg> element for an HTML page: without prologue, namespaces and width."""
    head, _, content = document[document.index("<svg") :].partition(">")
    view_box = re.search(r'viewBox="[^"]*"', head)
    assert view_box is not None
    return f'<svg {view_box[0]} role="img" aria-label="{escape(title)}">{content}'


def _shortened(label: str) -> str:
    if len(label) <= _MAX_LABEL_CHARACTERS:
        return label
    return label[: _MAX_LABEL_CHARACTERS - 1] + "…"
