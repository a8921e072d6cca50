"""What the console scripts and `python -m kvcs` start: the command line, and the time before it is there.

Importing it takes a moment, in which Ctrl-C would show where Python was. Nothing has begun by then, so the
process just ends, with the line and the exit status of any other interruption.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from importlib import import_module

INTERRUPTED = 130


def _leave(*_: object) -> None:
    with suppress(OSError):  # nobody may be listening
        os.write(2, b"kvcs: interrupted\n")
    os._exit(INTERRUPTED)


def _run(program: str) -> int:
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:  # not where it is ignored, as behind `nohup` or `&`
        signal.signal(signal.SIGINT, _leave)
    run = getattr(import_module("kvcs.cli.main"), program)
    signal.signal(signal.SIGINT, usual)
    status: int = run()
    return status


def main() -> int:
    """The program `kvcs`."""
    return _run("main")


def publish_main() -> int:
    """The program `kvcs-publish`."""
    return _run("publish_main")


def subscribe_main() -> int:
    """The program `kvcs-subscribe`."""
    return _run("subscribe_main")


if __name__ == "__main__":
    sys.exit(main())
