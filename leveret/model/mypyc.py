"""What the compiled form must know of a class (docs/decisions/0025-compiled-hot-path.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(*names, **values):
        """A decorator that mypyc reads, and that has no effect on Python."""
        return lambda decorated: decorated
