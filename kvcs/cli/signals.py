"""SIGINT, SIGTERM and SIGHUP, as an event or a cancelled task. The second one ends the process at once."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from kvcs import loops

_T = TypeVar("_T")


@contextmanager
def caught(react: Callable[[], object]) -> Iterator[None]:
    """Calls `react` at the first signal. Off the main thread, and without a loop that can, does nothing."""
    loop = asyncio.get_running_loop()
    installed: list[signal.Signals] = []

    def first() -> None:
        restore()
        react()

    def restore() -> None:
        while installed:
            loop.remove_signal_handler(installed.pop())

    if threading.current_thread() is threading.main_thread():
        for number in _numbers():
            try:
                loop.add_signal_handler(number, first)
            except NotImplementedError:
                break
            installed.append(number)
    try:
        yield
    finally:
        restore()


def _numbers() -> list[signal.Signals]:
    numbers = [signal.SIGINT, signal.SIGTERM]
    hangup: signal.Signals | None = getattr(signal, "SIGHUP", None)
    if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:  # not under nohup
        numbers.append(hangup)
    return numbers


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """Runs `work` to its end. A signal cancels it; once it has cleaned up, KeyboardInterrupt is raised."""
    interrupted = False

    async def main() -> _T:
        task = asyncio.current_task()
        assert task is not None

        def interrupt() -> None:
            nonlocal interrupted
            interrupted = True
            task.cancel()

        with caught(interrupt):
            return await work

    try:
        return loops.run(main())
    except asyncio.CancelledError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise
