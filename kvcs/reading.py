"""Small files whole: keys, tokens, descriptors, settings."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_up_to(path: Path, most: int) -> bytes:
    """The first `most` octets of a file, or of a pipe that somebody writes to. Raises OSError, with `strerror`."""
    with open(path, "rb", opener=_at_once) as file:
        is_pipe = stat.S_ISFIFO(os.fstat(file.fileno()).st_mode)
        if is_pipe:
            os.set_blocking(file.fileno(), True)
        data = file.read(most)
    if is_pipe and not data:
        raise OSError(errno.EPIPE, "it is a pipe that nobody writes to", str(path))
    return data


def _at_once(path: str, flags: int) -> int:
    # Opening a named pipe would wait for a writer for ever.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
