"""The processes of one run of a case: a server, a shaper where there is one, a client."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from kvcs.bench.plan import Plan

ROOT = Path(__file__).resolve().parent.parent.parent
TIMEOUT = 300.0

Numbers = dict[str, Any]
"""What a process says of itself."""


class RunFailed(Exception):
    """A process ended before its time; it has said why on standard error."""


def run_pair(
    plan: Plan, server: str, client: str, *, python: str = sys.executable, timeout: float = TIMEOUT
) -> Numbers:
    """Runs the roles in fresh processes. What the server says at its end comes with `server_` before it."""
    with ExitStack() as stack:
        serving = stack.enter_context(_process(python, plan, server))
        ready = _line(serving, server)
        url = ready.pop("url")
        address = [*ready.get("namespace", ()), ready["track"]] if "track" in ready else []
        if "shape" in plan.options:
            shaping = stack.enter_context(_process(python, plan, "shape", url))
            url = _line(shaping, "shape")["url"]
        took = subprocess.run(  # noqa: S603 - our own module
            _command(python, plan, client, url, *address),
            stdout=subprocess.PIPE,
            text=True,
            timeout=timeout,
            check=False,
            cwd=ROOT,
        )
        if took.returncode:
            raise RunFailed(client)
        said, _ = serving.communicate(timeout=TIMEOUT)
    numbers: Numbers = json.loads(took.stdout)
    at_server: Numbers = json.loads(said)
    return numbers | {f"server_{name}": value for name, value in at_server.items()}


def run_program(command: Sequence[str], pattern: str, cwd: str) -> Numbers:
    """Runs somebody else's benchmark; `pattern` finds its Mbit/s in what it prints."""
    ran = subprocess.run(  # noqa: S603 - the table of rows names it
        command, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT, check=False, cwd=cwd
    )
    found = re.search(pattern, ran.stdout)
    if ran.returncode or not found:
        raise RunFailed(command[0])
    return {"mbit_s": float(found[1].replace(",", ""))}


def _command(python: str, plan: Plan, *arguments: str) -> list[str]:
    return [python, "-m", "tests.bench.worker", plan.dump(), *arguments]


@contextmanager
def _process(python: str, plan: Plan, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(  # noqa: S603 - our own module
        _command(python, plan, *arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _line(process: subprocess.Popen[str], role: str) -> Numbers:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RunFailed(role)
    numbers: Numbers = json.loads(line)
    return numbers
