"""The processes of one run of a case: a server, a shaper where there is one, a client."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from kvcs.bench.memory import Watch
from kvcs.bench.plan import Plan
from kvcs.bench.runner import warm
from tests.interop.harness import free_port, running, until_taken

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
    warm(plan)
    with ExitStack() as stack:
        serving = stack.enter_context(_process(python, plan, server))
        ready = _line(serving, server)
        url = ready.pop("url")
        address = [*ready.get("namespace", ()), ready["track"]] if "track" in ready else []
        if "shape" in plan.options:
            shaping = stack.enter_context(_process(python, plan, "shape", url))
            url = _line(shaping, "shape")["url"]
        took = _run(python, plan, timeout, client, url, *address)
        said, _ = serving.communicate(timeout=TIMEOUT)
    return took | _of_server(said)


def _run(python: str, plan: Plan, timeout: float, role: str, *arguments: str) -> Numbers:
    took = subprocess.run(  # noqa: S603 - our own module
        _command(python, plan, role, *arguments),
        stdout=subprocess.PIPE,
        text=True,
        timeout=timeout,
        check=False,
        cwd=ROOT,
    )
    if took.returncode:
        raise RunFailed(role)
    numbers: Numbers = json.loads(took.stdout)
    return numbers


def _of_server(said: str) -> Numbers:
    numbers: Numbers = json.loads(said)
    return {f"server_{name}": value for name, value in numbers.items()}


def run_relayed(
    plan: Plan, server: str, client: str, command: Sequence[str], ready: str
) -> Numbers:
    """The same with a relay between them, which `command` starts; {port} is where it is to listen.

    The growth of its memory comes as `relay_anonymous`, its processor time as `relay_cpu`.
    """
    warm(plan)
    port = free_port()
    words = [word.format(port=port) for word in command]
    with running(*words, ready=ready) as relay, ExitStack() as stack:
        until_taken(port)
        url = f"moqt://127.0.0.1:{port}"
        watch = Watch(relay.pid)
        watch.start()
        serving = stack.enter_context(_process(sys.executable, plan, server, url))
        _line(serving, server)
        took = _run(sys.executable, plan, TIMEOUT, client, url)
        said, _ = serving.communicate(timeout=TIMEOUT)
        of_relay = {"relay_anonymous": watch.stop(), "relay_cpu": processor_time(relay.pid)}
    return took | _of_server(said) | of_relay


def processor_time(pid: int) -> float:
    """Seconds that a process has worked; of little worth where the system does not tell."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:
        return 1.0
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


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
