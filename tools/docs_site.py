"""mkdocs hooks: colours for code, and the version in the footer of each page.

The theme's own highlighting would load a script from another host; Pygments needs only a style
sheet, which is generated here for the light and the dark mode.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pygments.formatters import HtmlFormatter

ROOT = Path(__file__).parents[1]
STYLE_SHEET = "assets/highlight.css"


def version() -> str:
    text = (ROOT / "leveret" / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    assert match is not None
    return match[1]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.copyright = f"Leveret {version()}"
    config.extra_css.append(STYLE_SHEET)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    colours = _rules("default", ".codehilite")
    colours += _rules("github-dark", '[data-bs-theme="dark"] .codehilite')
    files.append(File.generated(config, STYLE_SHEET, content=colours))
    return files


def _rules(style: str, selector: str) -> str:
    formatter: Any = HtmlFormatter(style=style)  # get_style_defs has no types
    return f"{formatter.get_style_defs(selector)}\n"
