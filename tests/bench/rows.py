"""The table of what is measured. A new row is an entry here; a case whose library is not installed leaves no row."""

from __future__ import annotations

import sys
from typing import Any

from kvcs.bench.trust import ENCRYPT, SIGN
from tests.bench.cases import Case, Group, Row, Through, bound, ratio
from tests.bench.processes import Numbers

MIB = 1 << 20
RATE = 40e6
SHAPE: dict[str, Any] = {"rate": RATE, "queue_time": 0.05}
MTUS = (("1452", 1452), ("loopback MTU", 16000))
OBJECTS = (16, 32, 1024)
FACTORS = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Compute time of a layer, in times of its transfer."""
FIRST_LAYER = MIB * 8 / RATE * 1.3 + 2 * 0.05
"""Its share of the line rate, and two round trips through a full queue."""


def plain(mtu: int, **changes: Any) -> Case:
    """Plain streams over our transport and scheduler."""
    sizes = {"size": 128, "quick_size": 16} if mtu < 8192 else {"size": 512, "quick_size": 64}
    return Case(server="send-plain", client="take-plain", mtu=mtu, **(sizes | changes))


def full(mtu: int, **changes: Any) -> Case:
    """KVCS, verified into a file."""
    sizes = {"size": 128, "quick_size": 16} if mtu < 8192 else {"size": 256, "quick_size": 32}
    return Case(mtu=mtu, **(sizes | changes))


STOCK = Case(
    server="send-stock", client="take-stock", mtu=1200, size=32, quick_size=4, loop="asyncio"
)
LIBRARY = {"bulk": False}
"""The settings without the bulk fast path."""

TRANSPORT = Group(
    "Plain streams: the aioquic backend beside aioquic as it comes (1200 bytes, asyncio's loop)",
    {
        "stock": STOCK,
        "1200": plain(1200, size=64, quick_size=8),
        "1452": plain(1452),
        "16000": plain(16000),
        "1452-library": plain(1452, settings=LIBRARY, size=64, quick_size=8),
        "16000-library": plain(16000, settings=LIBRARY, size=256),
    },
    (
        ratio("1200 / stock", "1200", "stock"),
        ratio("1452 / stock", "1452", "stock", 6.0),
        ratio("loopback MTU / stock", "16000", "stock", 20.0),
        ratio("1452, no bulk fast path / stock", "1452-library", "stock", 2.5),
        ratio("loopback MTU, no bulk fast path / stock", "16000-library", "stock", 10.0),
    ),
)


def _kvcs_group(name: str, mtu: int, target: float, library_target: float) -> Group:
    """Objects of three sizes; those of 32 KiB without the bulk fast path as well."""
    cases: dict[str, Case] = {}
    rows: list[Row] = []

    def pair(
        kib: int, suffix: str, note: str, settings: dict[str, Any], goal: float | None
    ) -> None:
        size = {"in_quick": kib == 32}
        key = f"{kib}{suffix}"
        cases[f"kvcs-{key}"] = full(mtu, object_kib=kib, settings=settings, **size)
        cases[f"plain-{key}"] = plain(mtu, object_kib=kib, settings=settings, **size)
        objects = f"{kib} KiB" if kib < 1024 else "1 MiB"
        title = f"KVCS / plain, {objects} objects, {name}{note}"
        rows.append(ratio(title, f"kvcs-{key}", f"plain-{key}", goal))

    for kib in OBJECTS:
        pair(kib, "", "", {}, target if kib == 32 else None)
        if kib == 32:
            pair(kib, "-library", ", no bulk", LIBRARY, library_target)
    rows.append(
        ratio(f"KVCS with / without the bulk fast path, {name}", "kvcs-32", "kvcs-32-library")
    )
    rows.append(
        Row(
            f"first layer / all 32 layers, {name}",
            lambda r: r["kvcs-32"]["first_layer_seconds"] / r["kvcs-32"]["seconds"],
            ("kvcs-32",),
            unit="of the transfer",
        )
    )
    return Group(f"KVCS end to end beside plain streams, {name}", cases, tuple(rows))


KVCS = (
    _kvcs_group("1452", 1452, 0.70, 0.85),
    _kvcs_group("loopback MTU", 16000, 0.55, 0.70),
)

LOOPS = Group(
    "The same code on uvloop and on asyncio's loop",
    {
        f"{loop}-{mtu}": full(mtu, loop=loop, quick_size=16)
        for loop in ("asyncio", "uvloop")
        for _, mtu in MTUS
    },
    tuple(
        ratio(f"uvloop / asyncio, KVCS at {name}", f"uvloop-{mtu}", f"asyncio-{mtu}", 0.75)
        for name, mtu in MTUS
    ),
)

# Later settings, libraries and programs come as rows like these.
BACKENDS = Group(
    "Other transports, KVCS of 32 KiB objects",
    {
        "aioquic-1452": full(1452),
        "aioquic-16000": full(16000),
        "qh3": full(1452, backend="qh3"),
        "aiopquic": full(1452, backend="aiopquic"),
        "aiomoqt": Case(
            command=(
                *("moq-loopback-bench", "-Q", "--draft", "22", "-k", "-s", "32768", "-g", "64"),
                *("-P", "4", "--no-stats", "-t", "2", "--cert", "{directory}/server.pem"),
                *("--key", "{directory}/server-key.pem"),
            ),
            pattern=r"Throughput:\s*([\d.,]+) Mbps",
        ),
    },
    (
        ratio("qh3 / aioquic, 1452", "qh3", "aioquic-1452"),
        ratio("aiopquic / aioquic, 1452", "aiopquic", "aioquic-1452"),
        ratio("KVCS on aioquic, 1452 / aiomoqt's loopback", "aioquic-1452", "aiomoqt", 0.6),
        ratio("KVCS on aioquic, loopback MTU / aiomoqt's", "aioquic-16000", "aiomoqt", 1.7),
        ratio("KVCS on aiopquic / aiomoqt's loopback", "aiopquic", "aiomoqt", 0.6),
    ),
)

PIPELINE = Group(
    "A simulated engine of c seconds a layer, 40 Mbit/s",
    {
        "pipeline": Case(
            client="pipeline",
            size=8,
            quick_size=2,
            options={"shape": SHAPE, "factors": FACTORS},
            quick_options={"factors": (0.0, 0.5, 2.0)},
        )
    },
    (
        Row(
            "worst total / (1.05 × max(transfer, compute) + a layer)",
            lambda r: max(pipelining(r["pipeline"])),
            ("pipeline",),
            1.0,
            True,
            "of limit",
        ),
    ),
)


def pipelining(numbers: Numbers) -> list[float]:
    """For each factor above 0, the total as a part of what it may be."""
    transfer = numbers["times"][0]
    layer = numbers["layer_time"]
    measured = zip(numbers["factors"], numbers["times"], numbers["computes"], strict=True)
    return [
        total / (1.05 * max(transfer, compute) + max(1.0, factor) * layer)
        for factor, total, compute in measured
        if factor > 0
    ]


FIRST = Group(
    "40 Mbit/s, 50 ms of queue, layers of 1 MiB, after a transfer of 1 s",
    {
        "first": Case(
            server="publish-growing",
            client="first-layer",
            object_kib=128,
            size=40,
            quick_size=40,
            options={"shape": SHAPE, "warm_layers": 5},
            quick_options={"warm_layers": 2},
        )
    },
    (
        bound("first layer", "first", lambda n: float(n["first_layer_seconds"]), FIRST_LAYER),
        bound(
            "a new manifest meanwhile",
            "first",
            lambda n: float(n["manifest_at"] - n["server_appended_at"]),
            0.150,
        ),
    ),
)

MEMORY = Group(
    "Memory while 1 GiB is transferred, loopback MTU",
    {"large": full(16000, size=1024, quick_size=64)},
    (
        bound("consumer, of 64 MiB", "large", lambda n: n["anonymous"] / MIB, 64),
        bound("publisher, of 96 MiB", "large", lambda n: n["server_anonymous"] / MIB, 96),
    ),
    rounds=1,
)

MANY = Group(
    "Subscribers in one process",
    {
        "one": full(
            1452,
            client="subscribe-many",
            size=16,
            quick_size=4,
            options={"count": 1, "repeat": 8},
        ),
        "sixteen": full(
            1452,
            client="subscribe-many",
            size=16,
            quick_size=4,
            options={"count": 16, "repeat": 1},
        ),
    },
    (
        ratio("16 together / 1 alone", "sixteen", "one", 0.8),
        bound("latest tick of their loop, of 100 ms", "sixteen", lambda n: n["late"], 0.1),
    ),
)

STOPPED = Group(
    "A consumer that stops reading for 10 s",
    {
        "stopped": Case(
            server="publish-ticking",
            client="stop-reading",
            size=128,
            quick_size=64,
            options={"pause": 10.0},
            quick_options={"pause": 1.0},
        )
    },
    (
        bound("network ahead, of 8 MiB", "stopped", lambda n: n["ahead"] / MIB, 8),
        bound(
            "publisher's growth, of 32 MiB", "stopped", lambda n: n["server_anonymous"] / MIB, 32
        ),
        bound("publisher's latest tick, of 100 ms", "stopped", lambda n: n["server_late"], 0.1),
        bound("consumer's latest tick, of 100 ms", "stopped", lambda n: n["late"], 0.1),
    ),
    rounds=3,
)

SHOWN = ("--cert", "{directory}/server.pem", "--key", "{directory}/server-key.pem")
AIOMOQT_RELAY = Through(
    (
        *("moq-interop-relay", "--bind", "127.0.0.1", "--port", "{port}", "--quic"),
        *("--draft", "22", *SHOWN),
    ),
    "Listening on",
)


def our_relay() -> Through:
    """`kvcs relay`."""
    ours = (sys.executable, "-m", "kvcs.cli.main", "relay", "--listen", "127.0.0.1:{port}", *SHOWN)
    return Through(ours, "relaying at")


def through(relay: Through, **changes: Any) -> Case:
    """One publisher and one subscriber of 32 KiB objects, live."""
    ends: dict[str, Any] = {"server": "offer", "client": "take", "size": 128, "quick_size": 16}
    return Case(relay=relay, **(ends | changes))


RELAY = Group(
    "Through a relay, live, 32 KiB objects, one publisher and one subscriber",
    {
        "kvcs": through(our_relay()),
        "aiomoqt": through(AIOMOQT_RELAY),
        "eight": through(our_relay(), size=32, quick_size=4, options={"count": 8}),
    },
    (
        ratio("kvcs relay / aiomoqt's relay", "kvcs", "aiomoqt", 1.5),
        Row(
            "processor time of aiomoqt's relay / kvcs relay's",
            lambda r: r["aiomoqt"]["relay_cpu"] / r["kvcs"]["relay_cpu"],
            ("kvcs", "aiomoqt"),
        ),
        Row(
            "octets that the publisher sends for 8 subscribers, of one's",
            lambda r: r["eight"]["server_sent"] / r["eight"]["each"],
            ("eight",),
            1.0,
            True,
            "of limit",
        ),
        ratio("8 subscribers in all / 1", "eight", "kvcs"),
    ),
)

BESIDE = Group(
    "Through kvcs relay, a subscriber beside one that is stopped",
    {
        "alone": through(our_relay()),
        "beside": through(our_relay(), client="take-beside-stopped"),
    },
    (
        ratio("beside a stopped subscriber / alone", "beside", "alone", 0.9),
        Row(
            "the relay's growth, of the content + 64 MiB",
            lambda r: r["beside"]["relay_anonymous"] / (r["beside"]["each"] + 64 * MIB),
            ("beside",),
            1.0,
            True,
            "of limit",
        ),
    ),
)


def busy(numbers: Numbers) -> float:
    """CPU seconds of the end that used more: what bounds the throughput where each has a core."""
    return max(float(numbers["cpu"]), float(numbers["server_cpu"]))


def _trust_group(name: str, mtu: int) -> Group:
    """The same cache open, encrypted, and encrypted and signed."""
    sealed = {ENCRYPT: True}
    return Group(
        f"Encryption and signatures, {name}",
        {
            "open": full(mtu),
            "sealed": full(mtu, options=sealed),
            "trusted": full(mtu, options=sealed | {SIGN: True}),
        },
        (
            ratio(f"encrypted / open, {name}", "sealed", "open"),
            ratio(f"encrypted and signed / open, {name}", "trusted", "open", 0.7),
            Row(
                f"CPU time, open / encrypted and signed, {name}",
                lambda r: busy(r["open"]) / busy(r["trusted"]),
                ("open", "trusted"),
                0.7,
            ),
        ),
    )


TRUST = (_trust_group("1452", 1452), _trust_group("loopback MTU", 16000))

GROUPS = {
    "transport": TRANSPORT,
    "kvcs-1452": KVCS[0],
    "kvcs-16000": KVCS[1],
    "trust-1452": TRUST[0],
    "trust-16000": TRUST[1],
    "loops": LOOPS,
    "backends": BACKENDS,
    "first": FIRST,
    "pipeline": PIPELINE,
    "many": MANY,
    "stopped": STOPPED,
    "relay": RELAY,
    "beside": BESIDE,
    "memory": MEMORY,
}
"""In the order in which they are run and shown."""
