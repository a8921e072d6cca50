"""The loop of one worker: mutate, run, keep what reaches new lines of the code, note what fails."""

from __future__ import annotations

import mmap
import random
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from types import FrameType
from typing import Any

from tests.fuzz import limits
from tests.fuzz.mutations import mutate
from tests.fuzz.target import Target

TRACED = 4
"""Lines are noted in one run of so many: that makes a run several times slower."""
FAILURES = 8
"""Different ones, after which a worker has found enough."""
_OURS = ("/moqt/", "/kvcs/")


@dataclass(slots=True)
class Failure:
    """An input that did what none may do."""

    what: str
    where: str
    data: bytes


@dataclass(slots=True)
class Outcome:
    """What a worker did."""

    target: str
    runs: int = 0
    refused: int = 0
    lines: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    memory: int = 0
    kept: list[bytes] = field(default_factory=list)
    """Inputs that reached lines which no seed reaches."""
    failures: list[Failure] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Octets in hex."""
        document = asdict(self)
        document["kept"] = [data.hex() for data in self.kept]
        for failure in document["failures"]:
            failure["data"] = failure["data"].hex()
        return document


class Note:
    """Memory that outlives a worker: what it was about to run."""

    _SIZE = 1 << 20

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, self._SIZE)

    def write(self, data: bytes) -> None:
        """Called before every run."""
        self._map[:8] = len(data).to_bytes(8, "big")
        self._map[8 : 8 + len(data)] = data

    def read(self) -> bytes:
        """The last input."""
        return self._map[8 : 8 + int.from_bytes(self._map[:8], "big")]


class Lines:
    """The lines of our code that were run."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self._ours: dict[str, bool] = {}

    def new(self, run: Callable[[bytes], None], data: bytes) -> bool:
        """Runs once; whether it came to lines that were not seen before."""
        before = len(self.seen)
        sys.settrace(self._call)
        try:
            run(data)
        finally:
            sys.settrace(None)
        return len(self.seen) > before

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        name = frame.f_code.co_filename
        ours = self._ours.get(name)
        if ours is None:
            ours = self._ours[name] = any(part in name for part in _OURS)
        return self._line if ours else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        self.seen.add(id(frame.f_code) << 16 | frame.f_lineno & 0xFFFF)
        return self._line


class Worker:
    """Fuzzes one target."""

    def __init__(self, target: Target, seed: str, note: Note) -> None:
        self.outcome = Outcome(target.name)
        self._target = target
        self._dice = random.Random(seed)
        self._note = note
        self._lines = Lines()
        self._pool: list[bytes] = []
        self._places: set[str] = set()

    def work(self, seconds: float, corpus: list[bytes]) -> Outcome:
        """Runs seeds and corpus, then mutations of them for `seconds` of processor time."""
        outcome, target, dice = self.outcome, self._target, self._dice
        started = time.process_time()
        for data in (*target.seeds, *corpus):
            self._once(data, traced=True)
            self._pool.append(data)
        while len(outcome.failures) < FAILURES:
            outcome.seconds = time.process_time() - started
            if outcome.seconds >= seconds:
                break
            # The latest finds are the most promising ones.
            first = dice.choice((0, 0, len(self._pool) * 3 // 4))
            data = self._pool[dice.randrange(first, len(self._pool))]
            changed = mutate(dice, data, self._pool, target.words, target.most)
            if self._once(changed, traced=outcome.runs % TRACED == 0):
                self._pool.append(changed)
                outcome.kept.append(changed)
        limits.stop_clock()
        outcome.lines = len(self._lines.seen)
        outcome.memory = limits.peak_memory()
        return outcome

    def _once(self, data: bytes, *, traced: bool) -> bool:
        """Whether the input came to new lines."""
        self.outcome.runs += 1
        self._note.write(data)
        before, reached = len(self._lines.seen), time.process_time()
        limits.start_clock()
        try:
            if traced:
                self._lines.new(self._target.run, data)
            else:
                self._target.run(data)
        except self._target.errors:
            self.outcome.refused += 1
        except Exception as error:  # noqa: BLE001 - what may come out is the target's to say
            self._failed(error, data)
        limits.stop_clock()
        self.outcome.slowest = max(self.outcome.slowest, time.process_time() - reached)
        return len(self._lines.seen) > before

    def _failed(self, error: Exception, data: bytes) -> None:
        *_, last = traceback.extract_tb(error.__traceback__)
        where = f"{type(error).__name__} at {last.filename}:{last.lineno}"
        if where not in self._places:
            self._places.add(where)
            self.outcome.failures.append(Failure(repr(error)[:500], where, data))
