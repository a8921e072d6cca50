"""The corpus: inputs that reached new lines once, and failures of the past. One file for a kind of targets, one JSON
object a line:

    {"target": "url", "text": "moqt://[::1]"}
    {"target": "setup", "hex": "af00", "note": "what it once did"}

`text` where an input is printable ASCII, else `hex`; a note is for people.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tests.fuzz.registry import KINDS

CORPUS = Path(__file__).resolve().parent / "corpus"


def load(path: Path) -> list[tuple[str, bytes, str]]:
    """Target, octets and note of each input in a file."""
    lines = path.read_text("ascii").splitlines() if path.exists() else []
    return [_read(json.loads(line)) for line in lines]


def _read(entry: dict[str, str]) -> tuple[str, bytes, str]:
    text = entry.get("text")
    data = bytes.fromhex(entry["hex"]) if text is None else text.encode("ascii")
    return entry["target"], data, entry.get("note", "")


def _line(name: str, data: bytes, note: str) -> str:
    text = data.decode("latin-1")
    printable = text.isascii() and all(c.isprintable() or c == "\n" for c in text)
    entry = {"target": name, "text": text} if printable else {"target": name, "hex": data.hex()}
    return json.dumps(entry | ({"note": note} if note else {}))


def corpus_of(name: str) -> list[bytes]:
    """The inputs that are kept for a target."""
    return _all().get(name, [])


@cache
def _all() -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for path in sorted(CORPUS.glob("*.jsonl")):
        for name, data, _ in load(path):
            found.setdefault(name, []).append(data)
    return found


def keep(name: str, inputs: Iterable[bytes], directory: Path = CORPUS) -> None:
    """Adds inputs of a target, each once, in order of targets and lengths."""
    path = directory / f"{KINDS[name]}.jsonl"
    found = {(target, data): note for target, data, note in load(path)}
    for data in inputs:
        found.setdefault((name, data), "")
    directory.mkdir(parents=True, exist_ok=True)
    in_order = sorted(found, key=lambda one: (one[0], len(one[1]), one[1]))
    path.write_text("".join(f"{_line(*one, found[one])}\n" for one in in_order), "ascii")
    _all.cache_clear()
