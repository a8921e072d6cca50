"""What one input may take. An input that takes more is a fault like any other."""

from __future__ import annotations

import resource
import signal
from pathlib import Path

SECONDS = 1.0
"""Processor time for one input: a machine that is busy with other things makes nothing slower."""
MEMORY = 256 << 20
"""Octets of memory, the interpreter and all modules included."""


def limit_memory() -> None:
    """From now on an allocation that would lead past MEMORY fails with MemoryError."""
    space, resident = (
        int(pages) * resource.getpagesize()
        for pages in Path("/proc/self/statm").read_text("ascii").split()[:2]
    )
    resource.setrlimit(resource.RLIMIT_AS, (space - resident + MEMORY,) * 2)


def start_clock() -> None:
    """Ends this process by SIGPROF unless it is called again within SECONDS of processor time.

    There is no handler on purpose: code that never comes back to the interpreter is ended as well.
    """
    signal.setitimer(signal.ITIMER_PROF, SECONDS)


def stop_clock() -> None:
    """Ends the limit."""
    signal.setitimer(signal.ITIMER_PROF, 0)


def peak_memory() -> int:
    """The most octets that were resident so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
