"""What the console scripts and `python -m kvcs` start: the command line, and the time before it is there."""

from __future__ import annotations

import sys
from importlib import import_module

from kvcs.interruption import ends_at_once


def _run(program: str) -> int:
    with ends_at_once():
        run = getattr(import_module("kvcs.cli.main"), program)
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
