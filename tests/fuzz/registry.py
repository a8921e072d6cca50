"""All targets, by name."""

from __future__ import annotations

from tests.fuzz.target import Target
from tests.fuzz.targets import access, documents, files, objects, sealed, sessions, wire

_MODULES = (wire, objects, sealed, sessions, documents, access, files)

TARGETS: dict[str, Target] = {
    target.name: target for module in _MODULES for target in module.TARGETS
}

KINDS: dict[str, str] = {
    target.name: module.__name__.rpartition(".")[2]
    for module in _MODULES
    for target in module.TARGETS
}
"""The module of each target."""
