"""Tokens in files and settings: base64url on one line, or the octets as they are. Nothing of one is ever in a message."""

from __future__ import annotations

import base64
import logging
import re
from pathlib import Path

from kvcs.access.compact import is_compact
from kvcs.access.cwt import MAX_OCTETS
from kvcs.access.policy import CAT
from kvcs.envelope import MAX_WRAPPING
from kvcs.errors import UsageError
from kvcs.keyfiles import write_new
from kvcs.reading import read_up_to, unreadable
from moqt import Token

_log = logging.getLogger(__name__)

_TEXT = re.compile(rb"[A-Za-z0-9_-]+")
_FIRST = frozenset({0xD8, 0xD1, 0xD2, 0x84})
"""Octets that a CWT can begin with: its tags, or an array of four."""
_LONGEST = 2 * (MAX_OCTETS + MAX_WRAPPING)


def token_octets(data: bytes) -> bytes | None:
    """The token in the text or octets of a file; None where they cannot be one."""
    if data[:1] and data[0] in _FIRST:
        return data
    text = data.strip()
    if is_compact(text):
        return text
    if not _TEXT.fullmatch(text):
        return None
    try:
        octets = base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))
    except ValueError:
        return None
    return octets if octets[:1] and octets[0] in _FIRST else None


def load_token(path: Path, given: str = "--auth-token or KVCS_AUTH_TOKEN") -> bytes:
    """The token in a file. Raises UsageError, which quotes nothing that may be a token, `given` in its place."""
    if token_octets(str(path).encode("utf-8", "surrogateescape")) is not None:
        raise UsageError("auth token: give the name of a file, not the token itself")
    try:
        data = read_up_to(path, _LONGEST + 1)
    except OSError as fault:
        raise unreadable("auth token", path, fault, given) from None
    octets = token_octets(data) if len(data) <= _LONGEST else None
    if octets is None:
        raise UsageError(f"auth token: {path} holds no token: expected one line of base64url")
    return octets


def token_text(token: bytes) -> str:
    """A token as it stands in a file or a variable."""
    if is_compact(token):
        return token.decode("ascii")
    return base64.urlsafe_b64encode(token).rstrip(b"=").decode("ascii")


def write_token(path: Path, token: bytes) -> None:
    """Writes a token for its owner's eyes only. Raises UsageError where the file exists."""
    write_new(path, f"{token_text(token)}\n".encode("ascii"), 0o600)


class TokenFile:
    """The token in a file, as a credential: read anew when the file has changed."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError where there is no token now."""
        self._path = path
        self._seen = self._stamp()
        self._token = Token(CAT, load_token(path))

    def __call__(self) -> Token:
        """What is in the file; what was there before where it cannot be read."""
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            try:
                self._token = Token(CAT, load_token(self._path))
            except UsageError as fault:
                _log.warning("the token stays as it was: %s", fault)
        return self._token

    def _stamp(self) -> tuple[int, ...]:
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_size, found.st_ino
