"""`python -m tests.bench.profile`: where a publisher and a consumer spend their time, by part of the code, in percent.

The profiler makes Python functions dearer than they are and leaves C alone, so shares of C code are too small here.
"""

from __future__ import annotations

import pstats
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from kvcs import certs
from kvcs.bench.plan import scratch
from kvcs.bench.runner import prepare
from tests.bench.cases import Case
from tests.bench.processes import run_pair

MTUS = (1452, 16000)
SIZE = 64
IDLE = ("select.epoll", "select.poll", "kqueue", "time.sleep", "_thread.lock")
LIBRARY = {
    "quic/connection.py": "aioquic: connection",
    "quic/recovery.py": "aioquic: recovery, congestion",
    "quic/stream.py": "aioquic: streams",
    "quic/packet_builder.py": "aioquic: packets",
    "quic/packet.py": "aioquic: packets",
    "quic/rangeset.py": "aioquic: range sets",
    "quic/crypto.py": "aioquic: packet protection",
}
BUILTINS = {
    "socket": "system calls on sockets",
    "hash": "SHA-256",
    "sha256": "SHA-256",
    "openssl": "packet protection in C",
    "rust": "packet protection in C",
    "pread": "file reads",
    "readinto": "file reads",
    "aioquic._buffer": "aioquic: buffers in C",
}
OURS = {
    "moqt/quic/bulk": "moqt.quic: bulk fast path",
    "moqt/quic": "moqt.quic",
    "moqt/protocol": "moqt: sessions, scheduler",
    "moqt/wire": "moqt: framing",
    "/moqt/": "moqt: the rest",
    "/kvcs/": "kvcs",
    "/asyncio/": "asyncio",
    "selectors.py": "asyncio",
}


def area(file: str, name: str) -> str | None:
    """The part of the code that a function belongs to; None for waiting."""
    if any(word in name for word in IDLE):
        return None
    if file == "~":
        return next((part for word, part in BUILTINS.items() if word in name.lower()), "other C")
    if "aioquic" in file and "/moqt/" not in file:
        return next((part for end, part in LIBRARY.items() if file.endswith(end)), "aioquic: rest")
    return next((part for word, part in OURS.items() if word in file), "other Python")


def shares(stats: Mapping[tuple[str, int, str], tuple[Any, ...]]) -> list[tuple[str, float]]:
    """Percent of the busy time, largest first."""
    found: Counter[str] = Counter()
    for (file, _, name), (_, _, own, *_) in stats.items():
        part = area(file, name)
        if part is not None:
            found[part] += own
    whole = sum(found.values())
    return [(part, 100 * own / whole) for part, own in found.most_common()]


def run_profile(mtu: int, size: int, *, bulk: bool = True) -> dict[str, list[tuple[str, float]]]:
    """Transfers `size` MiB; the shares of the publisher and of the consumer."""
    with tempfile.TemporaryDirectory(prefix="kvcs-profile-", dir=scratch()) as directory:
        certs.make(Path(directory))
        target = str(Path(directory, "profile"))
        case = Case(
            mtu=mtu,
            size=size,
            loop="asyncio",  # uvloop waits where the profiler cannot tell it from work
            settings={"bulk": bulk},
            options={"profile": target},
        )
        plan = case.plan(directory, quick=False)
        prepare(plan)
        run_pair(plan, case.server, case.client)
        return {
            role: shares(pstats.Stats(f"{target}-{role}").stats)  # type: ignore[attr-defined]
            for role in (case.server, case.client)
        }


def main() -> None:
    """Prints the shares of both ends, for each datagram size with and without the bulk fast path."""
    for mtu, bulk in product(MTUS, (True, False)):
        for role, parts in run_profile(mtu, SIZE, bulk=bulk).items():
            path = "bulk fast path" if bulk else "packet by packet"
            sys.stdout.write(f"{role}, {mtu}-byte datagrams, {path}\n")
            for part, share in parts:
                if share >= 1:
                    sys.stdout.write(f"  {part:32}{share:5.0f} %\n")


if __name__ == "__main__":
    main()
