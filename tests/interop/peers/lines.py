"""A peer program: commands come as JSON lines on stdin, one answer each goes to stdout."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

Command: TypeAlias = Callable[..., Awaitable[dict[str, Any]]]
Failures: TypeAlias = tuple[type[BaseException], ...]


def answer(**content: Any) -> None:
    """One line for the scenario."""
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


async def serve(commands: dict[str, Command], failures: Failures) -> None:
    """Runs commands in turn until stdin ends. What is one of `failures` is told, anything else ends the program."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked = json.loads(line)
        try:
            answer(**await commands[asked.pop("do")](**asked))
        except failures as fault:
            code = getattr(fault, "error_code", None)
            answer(
                error=f"{type(fault).__name__}: {fault}",
                code=code if isinstance(code, int) else None,
            )


def fields(texts: list[str]) -> tuple[bytes, ...]:
    """A namespace, given in hexadecimal."""
    return tuple(bytes.fromhex(text) for text in texts)
