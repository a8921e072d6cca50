"""What one benchmark run transfers, as all of its processes know it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kvcs.errors import UsageError
from kvcs.loops import chosen
from moqt import Config, TransportConfig

LAYERS = 32
KV_HEADS = 8
HEAD_DIM = 128
SCOPE_KEY = bytes(range(32))
_TOKEN_OCTETS = KV_HEADS * HEAD_DIM * 2
"""Of one token in one component, bf16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A 32-layer cache of bf16, in Objects of `object_kib`."""

    directory: str
    backend: str
    mtu: int
    size_mib: int
    object_kib: int
    loop: str = field(default_factory=chosen)
    """The event loop of both processes: asyncio or uvloop."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Changes to the TransportConfig."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What a role of its own wants to know."""

    @classmethod
    def load(cls, text: str) -> Plan:
        """From the command line of a worker."""
        return cls(**json.loads(text))

    def dump(self) -> str:
        """For the command line of a worker."""
        return json.dumps(asdict(self))

    @property
    def block_tokens(self) -> int:
        return (self.object_kib << 10) // _TOKEN_OCTETS

    @property
    def blocks(self) -> int:
        return (self.size_mib << 20) // (2 * LAYERS * (self.object_kib << 10))

    @property
    def octets(self) -> int:
        """Data of the whole cache."""
        return 2 * LAYERS * self.blocks * (self.object_kib << 10)

    def check(self) -> None:
        """Raises UsageError for sizes that make no whole Objects."""
        if self.object_kib < 2 or self.object_kib % 2:
            raise UsageError(f"--object-kib: expected an even number from 2, got {self.object_kib}")
        if self.blocks < 1:
            least = 2 * LAYERS * self.object_kib / 1024
            raise UsageError(f"--size: {LAYERS} layers of such objects have at least {least:g} MiB")

    @property
    def file(self) -> Path:
        return Path(self.directory) / "cache.safetensors"

    @property
    def certificates(self) -> Path:
        return Path(self.directory)

    @property
    def config(self) -> Config:
        return Config(transport=TransportConfig(datagram_size=self.mtu, **self.settings))


def scratch() -> str | None:
    """A directory in memory where the system has one: disks are not what is measured. Else the usual place."""
    memory = Path("/dev/shm")  # noqa: S108 - only looked for
    return str(memory) if memory.is_dir() and os.access(memory, os.W_OK) else None
