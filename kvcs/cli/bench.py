"""`kvcs bench`: throughput of KVCS beside plain QUIC streams of the same octets, in one run."""

from __future__ import annotations

import json
import tempfile

import click

from kvcs.bench.plan import Plan, scratch
from kvcs.bench.runner import Result, run
from kvcs.bench.trust import ENCRYPT, SIGN
from kvcs.cli import transport


@click.command("bench")
@click.option(
    "--size",
    type=click.IntRange(1, 1 << 20),
    default=128,
    show_default=True,
    metavar="MIB",
    help="Data of the cache.",
)
@click.option(
    "--object-kib",
    type=click.IntRange(2, 32 << 10),
    default=32,
    show_default=True,
    metavar="N",
    help="Data of one Object.",
)
@click.option(
    "--quic",
    "--backend",
    "quic",
    type=transport.NAMES,
    default="aioquic",
    show_default=True,
    help="QUIC library.",
)
@click.option(
    "--mtu",
    type=click.IntRange(1200, 65000),
    default=1452,
    show_default=True,
    metavar="N",
    help="UDP payload of a packet.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    metavar="N",
    help="Interleaved pairs.",
)
@click.option(
    "--bulk/--no-bulk",
    default=True,
    show_default=True,
    help="Build and open many packets at once; without it each one is the library's.",
)
@click.option("--encrypt", is_flag=True, help="KVCS encrypts every Object.")
@click.option("--sign", is_flag=True, help="KVCS signs and requires signatures.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(
    *,
    size: int,
    object_kib: int,
    quic: str,
    mtu: int,
    rounds: int,
    bulk: bool,
    encrypt: bool,
    sign: bool,
    as_json: bool,
) -> None:
    """Measure throughput and memory on this machine.

    Every round transfers the cache twice in fresh publisher and consumer processes: with KVCS, verified into a file,
    and as plain QUIC streams that are only counted. Compare ratios, not megabits.
    """
    transport.backend(quic)
    with tempfile.TemporaryDirectory(prefix="kvcs-bench-", dir=scratch()) as directory:
        plan = Plan(
            directory=directory,
            backend=quic,
            mtu=mtu,
            size_mib=size,
            object_kib=object_kib,
            settings={"bulk": bulk},
            options={ENCRYPT: encrypt, SIGN: sign},
        )
        result = run(plan, rounds, _show)
    if as_json:
        click.echo(json.dumps(result.to_json()))
    else:
        for name, value in result.to_json().items():
            click.echo(f"{name:28}{value}")


def _show(result: Result) -> None:
    number = len(result.kvcs)
    click.echo(
        f"round {number}: KVCS {result.kvcs[-1]:.0f} Mbit/s, plain {result.raw[-1]:.0f} Mbit/s, "
        f"ratio {result.kvcs[-1] / result.raw[-1]:.2f}",
        err=True,
    )
