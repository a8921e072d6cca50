"""`python -m tests.bench`, which `make bench` runs: the whole suite, a table, and JSON and a picture in docs/bench."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench.picture import picture
from tests.bench.rows import GROUPS
from tests.bench.suite import environment, run_suite
from tests.bench.table import table

OUTPUT = Path(__file__).resolve().parent.parent.parent / "docs" / "bench"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small and once; proves nothing")
    parser.add_argument("--rounds", type=int, default=None, metavar="N", help="5, quick 1")
    parser.add_argument(
        "--only", action="append", choices=list(GROUPS), metavar="GROUP", help=", ".join(GROUPS)
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="docs/bench; a quick or partial run writes nothing",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Runs the suite. Always 0 when it ran: a target that is missed is a result."""
    options = parse(arguments)
    rounds = options.rounds or (1 if options.quick else 5)
    chosen = {name: group for name, group in GROUPS.items() if name in (options.only or GROUPS)}
    started = time.monotonic()
    results = run_suite(chosen, rounds=rounds, quick=options.quick, say=_progress)
    sys.stdout.write(table(results))
    _progress(f"{time.monotonic() - started:.0f} s")
    partial = options.quick or options.only
    output = options.output or (None if partial else OUTPUT)
    if output is not None:
        facts = environment(quick=options.quick, rounds=rounds)
        content = facts | {"groups": [result.to_json() for result in results]}
        output.mkdir(parents=True, exist_ok=True)
        (output / "results.json").write_text(json.dumps(content, indent=1) + "\n", "utf-8")
        (output / "results.svg").write_text(picture(content), "utf-8")
    return 0


def _progress(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
