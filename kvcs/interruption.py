"""Ctrl-C while modules are imported, which would show where Python was, or be lost in an import that expects to fail.

Nothing has begun by then, so the process just ends, with the line and the exit status of any other interruption.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

INTERRUPTED = 130


@contextmanager
def ends_at_once() -> Iterator[None]:
    """Within it SIGINT ends the process, unless it is ignored (as behind `nohup` or `&`) or answered otherwise."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:
        with suppress(ValueError):  # not in the main thread, which alone is interrupted
            signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is _leave:
            signal.signal(signal.SIGINT, usual)


def _leave(*_: object) -> None:
    with suppress(OSError):  # nobody may be listening
        os.write(2, b"kvcs: interrupted\n")
    os._exit(INTERRUPTED)
