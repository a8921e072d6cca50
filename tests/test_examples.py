"""Every program in examples/ runs, with real sockets, as its docstring says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.caches import SCOPE_KEY, descriptor_json

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
PATIENCE = 30


def command(name: str, *args: str | Path) -> tuple[list[str], dict[str, str]]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    words = [sys.executable, "-W", "error", str(EXAMPLES / name), *map(str, args)]
    return words, os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def output(name: str, *args: str | Path) -> list[str]:
    """The lines that a program writes before it ends well."""
    words, environment = command(name, *args)
    ended = subprocess.run(  # noqa: S603
        words, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()


@contextmanager
def running(name: str, *args: str | Path) -> Iterator[str]:
    """A program that serves until it is interrupted; its first line, which is its URL."""
    words, environment = command(name, *args)
    with subprocess.Popen(  # noqa: S603
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert (process.returncode, errors) == (0, "")


@pytest.fixture
def prompt(tmp_path: Path) -> list[Path]:
    """A scope key, a descriptor and tokens, in files."""
    files = [tmp_path / name for name in ("scope.key", "descriptor.json", "tokens.json")]
    files[0].write_text(SCOPE_KEY.hex() + "\n", "utf-8")
    files[1].write_text(json.dumps(descriptor_json()), "utf-8")
    files[2].write_text(json.dumps(list(range(9))), "utf-8")
    return files


def test_numpy_arrays_go_layer_by_layer(certificates: Path, prompt: list[Path]) -> None:
    with running("publish_numpy.py", *prompt, certificates) as url:
        lines = output("subscribe_layers.py", url, certificates / "ca.pem", *prompt)
    assert lines == [*(f"layer {layer}: {layer} {layer}" for layer in range(3)), "complete 12"]


def test_chunked_prefill(certificates: Path, prompt: list[Path]) -> None:
    """G3: passes of 72, 72 and 56 tokens become segments of 2, 2 and 2 blocks of 32."""
    prompt[1].write_text(json.dumps(descriptor_json(block_tokens=32)), "utf-8")
    assert output("chunked_prefill.py", prompt[1], certificates) == [
        "72 tokens: 2 blocks",
        "72 tokens: 2 blocks",
        "56 tokens: 2 blocks",
        "identical: True without 8 tokens",
    ]


def test_plain_moqt(certificates: Path) -> None:
    with running("moqt_publish.py", certificates) as url:
        lines = output("moqt_subscribe.py", url, certificates / "ca.pem")
    assert sorted(line.split()[-1] for line in lines) == [
        f"{group}.{number}" for group in range(10) for number in range(3)
    ]


def test_every_example_is_short_and_run_here() -> None:
    text = Path(__file__).read_text("utf-8")
    for path in EXAMPLES.glob("*.py"):
        assert f'"{path.name}"' in text
        assert 15 <= len(path.read_text("utf-8").splitlines()) <= 40
