"""Runs targets in worker processes, so that neither a hang nor a crash of one ends the others."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.fuzz import limits
from tests.fuzz.engine import FAILURES, Failure, Note, Outcome, Worker
from tests.fuzz.kept import corpus_of
from tests.fuzz.target import Target

_HANG = signal.SIGPROF


def save(name: str, data: bytes, directory: Path) -> Path:
    """Writes an input, to be replayed, to a file of its own."""
    place = directory / name / sha256(data).hexdigest()[:12]
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    return place


class Job:
    """One target, in a child at a time, until its share of the time is used up."""

    def __init__(self, target: Target, seconds: float, seed: int) -> None:
        self.target = target
        self.outcome = Outcome(target.name)
        self._left = seconds
        self._seed = seed
        self._round = 0
        self._note = Note()
        self._told = tempfile.TemporaryFile()  # noqa: SIM115 - `close` does
        self.child = 0

    def start(self) -> None:
        """Forks a worker."""
        self.child = os.fork()
        if self.child == 0:
            self._work()

    def _work(self) -> None:
        """In the child; does not return."""
        signal.signal(_HANG, signal.SIG_DFL)
        limits.limit_memory()
        worker = Worker(self.target, f"{self._seed} {self.target.name} {self._round}", self._note)
        outcome = worker.work(self._left, corpus_of(self.target.name))
        self._told.write(json.dumps(outcome.to_json()).encode("ascii"))
        self._told.flush()
        os._exit(0)

    def ended(self, status: int) -> bool:
        """Takes in what the worker did. Whether there is more to do."""
        code = os.waitstatus_to_exitcode(status)
        self._told.seek(0)
        told = self._told.read()
        if code == 0 and told:
            self._add(json.loads(told))
            return False
        what = f"more than {limits.SECONDS:g} s" if code == -_HANG else f"ended with {code}"
        self.outcome.failures.append(Failure(what, what, self._note.read()))
        # How long it had worked died with it; a share of the time is as good a guess as any.
        self._left -= max(limits.SECONDS, self._left / FAILURES)
        self._round += 1
        return self._left > 0 and len(self.outcome.failures) < FAILURES

    def close(self) -> None:
        """Nothing more is run."""
        self._told.close()

    def _add(self, told: dict[str, Any]) -> None:
        outcome = self.outcome
        for name in ("runs", "refused", "seconds"):
            setattr(outcome, name, getattr(outcome, name) + told[name])
        for name in ("lines", "slowest", "memory"):
            setattr(outcome, name, max(getattr(outcome, name), told[name]))
        outcome.kept += [bytes.fromhex(text) for text in told["kept"]]
        outcome.failures += [
            Failure(f["what"], f["where"], bytes.fromhex(f["data"])) for f in told["failures"]
        ]


def run_all(
    targets: Iterable[Target],
    *,
    seconds: float,
    workers: int,
    seed: int,
    tell: Callable[[Outcome], None],
) -> list[Outcome]:
    """Fuzzes the targets for `seconds` of processor time in all, `workers` at a time."""
    waiting = list(targets)
    share = seconds / len(waiting)
    queue = [Job(target, share, seed) for target in waiting]
    outcomes: list[Outcome] = []
    for job in _rotate(queue, workers):
        outcomes.append(job.outcome)
        tell(job.outcome)
    return outcomes


def _rotate(queue: list[Job], workers: int) -> Iterator[Job]:
    """Jobs as they are done, with `workers` of them running."""
    running: dict[int, Job] = {}
    while queue or running:
        while queue and len(running) < workers:
            job = queue.pop(0)
            job.start()
            running[job.child] = job
        child, status = os.wait()
        job = running.pop(child)
        if job.ended(status):
            queue.insert(0, job)
        else:
            job.close()
            yield job
