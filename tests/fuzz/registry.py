"""All targets, by name."""

from __future__ import annotations

from tests.fuzz.target import Target
from tests.fuzz.targets import access, documents, files, objects, sealed, sessions, wire

TARGETS: dict[str, Target] = {
    target.name: target
    for module in (wire, objects, sealed, sessions, documents, access, files)
    for target in module.TARGETS
}
