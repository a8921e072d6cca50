"""Writes a short-lived CA with a server and a client pair: `python certs/make.py [--directory DIR] [HOST ...]`."""

from __future__ import annotations

import argparse
from pathlib import Path

from kvcs.certs import LOOPBACK, make


def main() -> None:
    """Writes into this directory unless told otherwise."""
    parser = argparse.ArgumentParser(
        description="Makes throw-away certificates, valid for 14 days."
    )
    parser.add_argument("--directory", type=Path, default=Path(__file__).resolve().parent)
    parser.add_argument("hosts", nargs="*", default=list(LOOPBACK), metavar="HOST")
    arguments = parser.parse_args()
    make(arguments.directory, arguments.hosts)
    print(f"wrote ca, server and client to {arguments.directory}")


if __name__ == "__main__":
    main()
