"""`make fuzz`: every parser, whole sessions and files, fed with octets that are not quite right.

Ends with 1 where an input did what none may do; the input is saved, `--replay FILE` runs it again, and
`--targets NAME --add FILE` keeps it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import click

from tests.fuzz import limits
from tests.fuzz.engine import Outcome
from tests.fuzz.kept import keep
from tests.fuzz.registry import TARGETS
from tests.fuzz.runner import run_all, save
from tests.fuzz.target import Target

KEPT = 40
"""Inputs a target that `--keep` adds at the most,"""
KEPT_OCTETS = 4096
"""and their octets in all."""


def main() -> int:
    """Fuzzes, or replays; prints a line a target, and with `--json` all of it."""
    arguments = _arguments()
    chosen = [TARGETS[name] for name in arguments.targets.split(",") if name] or [*TARGETS.values()]
    if arguments.replay is not None:
        return _replay(chosen, arguments.replay)
    if arguments.add:
        for target in chosen:
            keep(target.name, [path.read_bytes() for path in arguments.add])
        return 0
    started = time.monotonic()
    outcomes = run_all(
        chosen,
        seconds=arguments.seconds,
        workers=arguments.workers,
        seed=arguments.seed,
        tell=lambda outcome: click.echo(_line(outcome)),
    )
    failed = sum(_report(outcome, arguments.failures) for outcome in outcomes)
    if arguments.keep:
        _keep(outcomes)
    runs, seconds = sum(o.runs for o in outcomes), sum(o.seconds for o in outcomes)
    click.echo(
        f"{len(outcomes)} targets, {runs} inputs in {seconds:.0f} s of processor time "
        f"({time.monotonic() - started:.0f} s by the clock), seed {arguments.seed}; failures: {failed}"
    )
    if arguments.json is not None:
        told = [outcome.to_json() | {"kept": len(outcome.kept)} for outcome in outcomes]
        arguments.json.write_text(json.dumps(told, indent=1) + "\n", "ascii")
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="processor time over all targets"
    )
    parser.add_argument("--targets", default="", help="names with commas; all by default")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the mutations")
    parser.add_argument("--failures", type=Path, default=Path(".fuzz"), help="where they go")
    parser.add_argument(
        "--keep", action="store_true", help="add what reached new lines to the corpus"
    )
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--replay", type=Path, help="run one input")
    parser.add_argument("--add", type=Path, nargs="+", help="add inputs to the corpus")
    return parser.parse_args()


def _line(outcome: Outcome) -> str:
    return (
        f"{outcome.target:22} {outcome.runs:9} inputs {outcome.refused:9} refused {outcome.lines:5} lines "
        f"{outcome.seconds:6.1f} s  slowest {outcome.slowest * 1000:6.1f} ms  {outcome.memory >> 20:4} MiB"
    )


def _report(outcome: Outcome, directory: Path) -> int:
    for failure in outcome.failures:
        place = save(outcome.target, failure.data, directory)
        click.echo(f"{outcome.target}: {failure.what} ({failure.where}): {place}", err=True)
    return len(outcome.failures)


def _replay(targets: list[Target], path: Path) -> int:
    data = path.read_bytes()
    limits.start_clock()
    for target in targets:
        try:
            target.run(data)
        except target.errors as refusal:
            click.echo(f"{target.name}: refused, {refusal!r}")
        else:
            click.echo(f"{target.name}: accepted")
    return 0


def _keep(outcomes: list[Outcome]) -> None:
    """The shortest of what reached new lines."""
    for outcome in outcomes:
        room, chosen = KEPT_OCTETS, []
        for data in sorted(outcome.kept, key=len)[:KEPT]:
            room -= len(data)
            if room >= 0:
                chosen.append(data)
        keep(outcome.target, chosen)


if __name__ == "__main__":
    sys.exit(main())
