"""A place apart from everything else for what a crowd of connections keeps: the C library's heap.

CPython makes small objects in arenas of a megabyte and gives back an arena in which nothing is
left. A counter or a timer made while a crowd was there keeps the arena around it when the crowd has
gone. The C library gives back single pages, but is slower, so only what connections make while they
settle in is made there (docs/decisions/0008-a-crowd-is-made-apart.md).

Freeing needs no choice: what lies in no arena CPython hands on to the C library, as it does with
all that is larger than 512 octets. Runs with the interpreter's lock held; a thread that gets it
meanwhile makes its objects in the heap, too, which is slower and nothing worse.
"""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager, nullcontext

_DOMAINS = {"raw": 0, "mem": 1, "obj": 2}


class _Allocator(ctypes.Structure):
    """`PyMemAllocatorEx` of Python's C API."""

    _fields_ = tuple(
        (name, ctypes.c_void_p) for name in ("context", "malloc", "calloc", "realloc", "free")
    )
    context: int | None
    malloc: int
    calloc: int
    realloc: int
    free: int


class _Heap:
    """A context: what is made inside is made in the C library's heap."""

    def __init__(self) -> None:
        self._set = ctypes.pythonapi.PyMem_SetAllocator
        self._set.restype = None
        self._usual, self._heap = [], []
        raw = _allocator("raw")
        for domain in ("mem", "obj"):
            number, usual = ctypes.c_int(_DOMAINS[domain]), _allocator(domain)
            heap = _Allocator(None, raw.malloc, raw.calloc, usual.realloc, usual.free)
            self._usual.append((number, ctypes.byref(usual)))
            self._heap.append((number, ctypes.byref(heap)))

    def __enter__(self) -> None:
        for domain, allocator in self._heap:
            self._set(domain, allocator)

    def __exit__(self, *_raised: object) -> None:
        for domain, allocator in self._usual:
            self._set(domain, allocator)


def find_place_apart() -> AbstractContextManager[None]:
    """A context for making things apart; where that cannot be, they are made as ever."""
    return _Heap() if _is_possible() else nullcontext()


def _is_possible() -> bool:
    """Only beside CPython's own allocator without hooks: it hands on what is not its own.

    The interpreter itself says what is in use: `PYTHONMALLOC` is not read where Python is told to
    ignore the environment, and a build may have another default (mimalloc frees only its own).
    """
    python = getattr(ctypes, "pythonapi", None)
    name = getattr(python, "_PyMem_GetCurrentAllocatorName", None)
    if name is None:
        return False
    name.restype = ctypes.c_char_p
    return bool(name() == b"pymalloc")


def _allocator(domain: str) -> _Allocator:
    found = _Allocator()
    ctypes.pythonapi.PyMem_GetAllocator(ctypes.c_int(_DOMAINS[domain]), ctypes.byref(found))
    return found
