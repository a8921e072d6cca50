"""The event loop of the programs: uvloop where it is installed, unless KVCS_LOOP says otherwise.

A program of your own decides for itself; the library runs on whatever loop is running.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

from kvcs.errors import UsageError

VARIABLE = "KVCS_LOOP"
LOOPS = ("uvloop", "asyncio")
"""The default first. uvloop does not exist for Windows."""

_KEPT = 8 << 20
"""Octets."""

_T = TypeVar("_T")


def chosen() -> str:
    """The loop of KVCS_LOOP, else the first that is installed. Raises UsageError for one that is not."""
    name = os.environ.get(VARIABLE, "")
    if name and name not in LOOPS:
        raise UsageError(f"{VARIABLE}: expected {' or '.join(LOOPS)}, got {name!r}")
    if name == "uvloop" and find_spec(name) is None:
        raise UsageError(f"{VARIABLE}: uvloop is not installed: pip install uvloop")
    return name or next(loop for loop in LOOPS if find_spec(loop) is not None)


def run(work: Coroutine[Any, Any, _T], loop: str | None = None) -> _T:
    """Runs `work` on a new loop of the kind `loop`, by default the chosen one, as asyncio.run does."""
    try:
        kind = loop or chosen()
    except UsageError:
        work.close()
        raise
    _keep_freed_memory()
    factory: Callable[[], asyncio.AbstractEventLoop] = import_module(kind).new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


def _keep_freed_memory() -> None:
    """Has glibc keep what is freed for the next batch of packets. Above 128 KiB it returns the end of its heap to the
    system, which clears every page that is asked for again. Its bound becomes twice what was allocated in one piece
    and freed (mallopt(3), M_MMAP_THRESHOLD); other allocators forget it.
    """
    bytearray(_KEPT)
