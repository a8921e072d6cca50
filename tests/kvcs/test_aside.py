"""kvcs.formats.aside: files take their name when they are whole."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from kvcs.errors import UsageError
from kvcs.formats.aside import AsideFile
from tests.support.caches import names


def test_keep(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"old")
    file = AsideFile(path, 100)
    file.write(memoryview(b"world"), 6)
    file.write(b"hello ", 0)
    assert path.read_bytes() == b"old"
    file.keep(11)
    assert path.read_bytes() == b"hello world"
    assert file.closed
    file.discard()
    assert names(tmp_path) == ["out"]


def test_it_is_for_its_owners_eyes(tmp_path: Path) -> None:
    """From its first octet on, whatever lay there before and whatever new files are otherwise."""
    path = tmp_path / "out"
    path.write_bytes(b"old")
    path.chmod(0o666)
    before = os.umask(0)
    try:
        file = AsideFile(path, 10)
        (aside,) = (found for found in tmp_path.iterdir() if found != path)
        assert stat.S_IMODE(aside.stat().st_mode) == 0o600
        file.keep(10)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_discard_leaves_nothing(tmp_path: Path) -> None:
    file = AsideFile(tmp_path / "out", 10)
    file.discard()
    file.discard()
    assert names(tmp_path) == []


def test_move_down_overlapping(tmp_path: Path) -> None:
    path = tmp_path / "out"
    octets = os.urandom(3_000_000)
    file = AsideFile(path, 3_000_000)
    file.write(octets, 0)
    file.move_down(1000, 10, len(octets) - 1000)
    file.keep(len(octets) - 990)
    assert path.read_bytes() == octets[:10] + octets[1000:]


def test_move_down_of_what_is_not_there(tmp_path: Path) -> None:
    file = AsideFile(tmp_path / "out", 10)
    with pytest.raises(OSError, match="cut short"):
        file.move_down(5, 0, 10)
    file.discard()


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a file"):
        AsideFile(tmp_path, 1)
    with pytest.raises(UsageError, match="is not a file"):
        AsideFile(Path(os.devnull), 1)
    with pytest.raises(UsageError, match="cannot write"):
        AsideFile(tmp_path / "none" / "out", 1)


def test_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UsageError, match="out: no room"):
        AsideFile(tmp_path / "out", 1 << 20)
    assert names(tmp_path) == []


def test_where_room_cannot_be_reserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not here")

    monkeypatch.setattr(os, "posix_fallocate", cannot)
    file = AsideFile(tmp_path / "out", 5)
    file.keep(5)
    assert (tmp_path / "out").read_bytes() == bytes(5)


def test_a_rename_that_fails_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "out"
    file = AsideFile(path, 5)
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        file.keep(5)
    assert names(tmp_path) == ["out"]
