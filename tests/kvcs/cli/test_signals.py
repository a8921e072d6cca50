"""kvcs.cli.signals: what a first, a second and a third signal do, in the process that gets them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import pytest

from kvcs.cli.signals import caught, run

ENDS = [signal.SIGINT, signal.SIGTERM]
pytestmark = pytest.mark.usefixtures("either_loop")


@pytest.fixture(autouse=True)
def dispositions() -> Iterator[None]:
    """As they were, afterwards; pytest's own Ctrl-C depends on them."""
    numbers = [*ENDS, signal.SIGHUP]
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


class Work:
    """Waits, cleans up until it is cancelled once more, and tells how far it came."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    async def __call__(self, *numbers: signal.Signals, again: signal.Signals | None = None) -> str:
        try:
            for number in numbers:
                signal.raise_signal(number)
            await asyncio.sleep(30)
        finally:
            self.steps.append("interrupted")
            if again is not None:
                signal.raise_signal(again)
                await asyncio.sleep(30)
            self.steps.append("clean")
        return "done"


@pytest.mark.parametrize("number", ENDS)
def test_the_first_cancels_and_waits_for_the_clean_up(number: signal.Signals) -> None:
    work = Work()
    with pytest.raises(KeyboardInterrupt):
        run(work(number))
    assert work.steps == ["interrupted", "clean"]


@pytest.mark.parametrize("number", ENDS)
def test_the_second_cancels_the_clean_up(number: signal.Signals) -> None:
    work = Work()
    with pytest.raises(KeyboardInterrupt):
        run(work(signal.SIGINT, again=number))
    assert work.steps == ["interrupted"]


def test_the_third_is_what_it_was() -> None:
    """For a process that does not get back to its loop."""

    async def stuck() -> None:
        with caught(lambda: None):
            for _ in range(2):
                signal.raise_signal(signal.SIGINT)
                await asyncio.sleep(0.01)

    async def work() -> object:
        try:
            await stuck()
        except KeyboardInterrupt:
            return signal.getsignal(signal.SIGINT)
        return None

    assert asyncio.run(work()) is signal.default_int_handler


def test_an_answer_comes_before_the_end() -> None:
    stopped: list[str] = []

    async def serve() -> None:
        stop = asyncio.Event()
        with caught(stop.set):
            signal.raise_signal(signal.SIGTERM)
            await stop.wait()
            stopped.append("asked")
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(30)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(serve())
    assert stopped == ["asked"]


def test_a_hangup_may_be_something_else_each_time() -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def work() -> str:
        for _ in range(3):
            signal.raise_signal(signal.SIGHUP)
            async with asyncio.timeout(10):
                await heard.get()
        return "done"

    assert run(work(), lambda: heard.put_nowait("hangup")) == "done"


def test_what_others_cancel_is_not_an_interruption() -> None:
    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)
        await asyncio.sleep(30)

    with pytest.raises(asyncio.CancelledError):
        run(work())


def test_dispositions_come_back() -> None:
    before = [signal.getsignal(number) for number in ENDS]

    async def work() -> str:
        return "done"

    assert run(work()) == "done"
    assert [signal.getsignal(number) for number in ENDS] == before
