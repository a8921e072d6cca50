"""kvcs.reading: small files within a bound; a pipe that nobody writes to does not hang anything."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kvcs.access.identities import load_identities
from kvcs.access.tokenfile import load_token
from kvcs.cli.config import find_config
from kvcs.cli.endpoints import certificates
from kvcs.cli.main import main
from kvcs.errors import UsageError
from kvcs.key_ring import load_keys
from kvcs.keyfiles import load_private_key
from kvcs.reading import read_up_to, unreadable
from kvcs.scopekey import load_scope_key


def test_no_more_than_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    assert read_up_to(path, 4) == b"0123"
    assert read_up_to(path, 99) == b"0123456789"
    assert read_up_to(Path("/dev/zero"), 99) == bytes(99)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    """Each error says why in `strerror`."""
    for path, reason in ((tmp_path, "Is a directory"), (tmp_path / "none", "No such file")):
        with pytest.raises(OSError, match=reason) as caught:
            read_up_to(path, 99)
        assert caught.value.strerror


def test_a_pipe_that_somebody_writes_to_is_a_file_like_others(tmp_path: Path) -> None:
    """As a shell's <(command) is."""
    reading, writing = os.pipe()
    try:
        os.write(writing, b"a secret from a vault")
        os.close(writing)
        assert read_up_to(Path(f"/dev/fd/{reading}"), 99) == b"a secret from a vault"
    finally:
        os.close(reading)


@pytest.mark.parametrize(
    "load",
    [
        load_scope_key,
        load_keys,
        load_token,
        load_private_key,
        load_identities,
        lambda path: certificates("ca", path),
    ],
)
def test_a_pipe_that_nobody_writes_to(load: Callable[[Path], object], tmp_path: Path) -> None:
    """Whatever kind of file it stands for."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="a pipe that nobody writes to"):
        load(tmp_path / "pipe")


def test_settings_in_such_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert find_config(str(tmp_path / "pipe")) == tmp_path / "pipe"
    assert main(["--config", str(tmp_path / "pipe"), "inspect", "x"]) == 2
    assert "a pipe that nobody writes to" in capsys.readouterr().err


def test_a_name_that_no_file_has_is_not_repeated(tmp_path: Path) -> None:
    """It may be the secret; one that a file has is none, and which it is helps."""
    why = OSError(13, "Permission denied")
    there, absent = tmp_path / "there", tmp_path / "absent"
    there.write_bytes(b"x")
    told = str(unreadable("key", there, why, "--sign"))
    assert told == f"key: cannot read {there}: Permission denied"
    for path in (absent, Path("x" * 5000)):
        told = str(unreadable("key", path, why, "--sign"))
        assert told.startswith("key: cannot read what --sign names: Permission denied; ")
        assert path.name not in told
