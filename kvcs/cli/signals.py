"""SIGINT, SIGTERM and SIGHUP, as an event or a cancelled task.

They are answered from the loop, between two steps of a task, so that none interrupts a clean-up half-way. A process
that does not get back to its loop ends at the third.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from kvcs import loops

_T = TypeVar("_T")
_ENDS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def caught(
    react: Callable[[], object] | None = None, hangup: Callable[[], object] | None = None
) -> Iterator[None]:
    """Calls `react` at the first signal and cancels the task at the next, which then raises KeyboardInterrupt;
    without `react` it is cancelled at once. With `hangup` SIGHUP is not among them, but calls that, each time.

    Off the main thread, and without a loop that can, does nothing.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    installed: list[signal.Signals] = []
    interrupted = False

    def cancel() -> None:
        nonlocal interrupted
        interrupted = True
        task.cancel()

    answers = [cancel, react or cancel]

    def answer() -> None:
        answers.pop()()
        if not answers:
            restore()

    def restore() -> None:
        while installed:
            loop.remove_signal_handler(installed.pop())

    if threading.current_thread() is threading.main_thread():
        for number in _numbers(hangup):
            reply = hangup if number not in _ENDS and hangup is not None else answer
            try:
                loop.add_signal_handler(number, reply)
            except NotImplementedError:
                break
            installed.append(number)
    try:
        yield
    except asyncio.CancelledError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        restore()


def _numbers(hangup: Callable[[], object] | None) -> list[signal.Signals]:
    number: signal.Signals | None = getattr(signal, "SIGHUP", None)
    if number is None or (hangup is None and signal.getsignal(number) is signal.SIG_IGN):
        return [*_ENDS]  # under nohup a hangup is nothing, unless it says something else here
    return [*_ENDS, number]


def run(work: Coroutine[Any, Any, _T], hangup: Callable[[], object] | None = None) -> _T:
    """Runs `work` to its end. A signal cancels it; once it has cleaned up, KeyboardInterrupt is raised.

    `hangup` is what SIGHUP does instead.
    """

    async def main() -> _T:
        with caught(hangup=hangup):
            return await work

    return loops.run(main())
