"""Small files whole: keys, tokens, descriptors, settings."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from kvcs.errors import UsageError


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


def unreadable(what: str, path: Path, fault: OSError, given: str) -> UsageError:
    """Why a file that holds a secret cannot be read.

    A name that no file has may be the secret, given in the place of its file. So it is not repeated; `given` says what
    it was given with.
    """
    if os.path.lexists(path):
        return UsageError(f"{what}: cannot read {path}: {fault.strerror}")
    return UsageError(
        f"{what}: cannot read what {given} names: {fault.strerror}; give the name of a file, not what is in it"
    )


def _at_once(path: str, flags: int) -> int:
    # Opening a named pipe would wait for a writer for ever.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
