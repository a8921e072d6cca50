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
_ENDS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def caught(
    react: Callable[[], object], hangup: Callable[[], object] | None = None
) -> Iterator[None]:
    """Calls `react` at the first signal. With `hangup` SIGHUP is not among them, but calls that, each time.

    Off the main thread, and without a loop that can, does nothing.
    """
    loop = asyncio.get_running_loop()
    installed: list[signal.Signals] = []

    def first() -> None:
        restore()
        react()

    def restore() -> None:
        while installed:
            loop.remove_signal_handler(installed.pop())

    if threading.current_thread() is threading.main_thread():
        for number in _numbers(hangup):
            answer = hangup if number not in _ENDS and hangup is not None else first
            try:
                loop.add_signal_handler(number, answer)
            except NotImplementedError:
                break
            installed.append(number)
    try:
        yield
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
    interrupted = False

    async def main() -> _T:
        task = asyncio.current_task()
        assert task is not None

        def interrupt() -> None:
            nonlocal interrupted
            interrupted = True
            task.cancel()

        with caught(interrupt, hangup):
            return await work

    try:
        return loops.run(main())
    except asyncio.CancelledError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise
