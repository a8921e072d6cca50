"""A file that is written beside its final place and takes its name only when it is whole."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path

from kvcs.errors import UsageError

Buffer = bytes | bytearray | memoryview

_COPY_CHUNK = 1 << 20


class AsideFile:
    """`size` octets under a temporary name in the directory of `path`; `keep` renames, `discard` removes.

    For its owner's eyes only: a KV cache tells the prompt. Who shares it says so afterwards.
    """

    def __init__(self, path: Path, size: int) -> None:
        """Raises `UsageError` where `path` cannot be written, is something else than a file, or has no room."""
        if path.exists() and not path.is_file():
            raise UsageError(f"output: {path} exists and is not a file; name another")
        self.path = path
        self._aside = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.part")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
        try:
            self._fd = os.open(self._aside, flags, 0o600)
        except OSError as fault:
            raise UsageError(f"output: cannot write {path}: {fault.strerror}") from None
        try:
            _reserve(self._fd, size)
        except OSError as fault:
            self.discard()
            raise UsageError(f"output: cannot write {path}: {fault.strerror}") from None

    @property
    def closed(self) -> bool:
        """Whether the file was kept or discarded."""
        return self._fd < 0

    def write(self, data: Buffer, offset: int) -> None:
        """Puts all of `data` at `offset`."""
        view = memoryview(data).cast("B")
        while view:
            written = os.pwrite(self._fd, view, offset)
            view = view[written:]
            offset += written

    def move_down(self, source: int, target: int, length: int) -> None:
        """Moves `length` octets towards the start of the file; the two ranges may overlap."""
        while length and source != target:
            chunk = os.pread(self._fd, min(length, _COPY_CHUNK), source)
            if not chunk:
                raise OSError(errno.EIO, "the file was cut short while it was written")
            self.write(chunk, target)
            source, target, length = source + len(chunk), target + len(chunk), length - len(chunk)

    def keep(self, size: int) -> None:
        """Cuts the file to `size`, has it stored, and gives it its name."""
        os.ftruncate(self._fd, size)
        os.fsync(self._fd)
        fd, self._fd = self._fd, -1
        os.close(fd)
        try:
            self._aside.replace(self.path)
        except OSError:
            self._aside.unlink(missing_ok=True)
            raise
        _sync_directory(self.path.parent)

    def discard(self) -> None:
        """Removes what was written. After `keep` it does nothing."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
            self._aside.unlink(missing_ok=True)


def _reserve(fd: int, size: int) -> None:
    """Finds out now, not half-way, that there is no room; where that cannot be asked, only sets the size."""
    if hasattr(os, "posix_fallocate") and size:
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as fault:
            if fault.errno not in {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS}:
                raise
        else:
            return
    os.ftruncate(fd, size)


def _sync_directory(directory: Path) -> None:
    """Makes the rename durable where directories can be opened."""
    if os.name != "posix":
        return
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
