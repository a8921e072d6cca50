"""kvcs.access.tokenfile: tokens in files, in every form, and files that change."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kvcs.access.tokenfile import TokenFile, load_token, token_octets, token_text, write_token
from kvcs.errors import UsageError
from tests.support.tokens import KEYS, KVCS, make

TOKEN = make(KEYS["EdDSA"])
COMPACT = KVCS["tokens"][0]["compact_c4m_vector_form"].encode("ascii")


@pytest.mark.parametrize(
    ("data", "token"),
    [
        (token_text(TOKEN).encode("ascii"), TOKEN),
        (b" " + token_text(TOKEN).encode("ascii") + b"\r\n", TOKEN),
        (token_text(TOKEN[2:]).encode("ascii"), TOKEN[2:]),
        (TOKEN, TOKEN),
        (COMPACT, COMPACT),
        (COMPACT + b"\n", COMPACT),
    ],
)
def test_every_form(tmp_path: Path, data: bytes, token: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(data)
    assert load_token(path) == token
    assert token_octets(token_text(token).encode("ascii")) == token


@pytest.mark.parametrize(
    "data", [b"", b"\n", b"token", b"a.b", b"a b", b"=", b"AAAA", bytes(9), b"x" * 99999]
)
def test_what_is_no_token(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(data)
    with pytest.raises(UsageError, match="holds no token"):
        load_token(path)


def test_a_token_is_written_once_and_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "token"
    write_token(path, TOKEN)
    assert load_token(path) == TOKEN
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UsageError, match="exists"):
        write_token(path, TOKEN)


def test_a_token_as_a_path_is_not_repeated() -> None:
    with pytest.raises(UsageError) as fault:
        load_token(Path(token_text(TOKEN)))
    assert token_text(TOKEN)[:20] not in str(fault.value)


def test_a_file_that_changes_gives_the_new_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A fresh token is shown without a restart; a file that is broken meanwhile changes nothing."""
    path = tmp_path / "token"
    write_token(path, TOKEN)
    credential = TokenFile(path)
    assert credential() == credential() == (1, TOKEN)
    fresh = make(KEYS["EdDSA"], issuer="again")
    aside = tmp_path / "aside"
    write_token(aside, fresh)
    aside.replace(path)
    assert credential() == (1, fresh)
    path.write_text("broken", "ascii")
    with caplog.at_level(logging.WARNING):
        assert credential() == (1, fresh)
        assert credential() == (1, fresh)
    assert len(caplog.records) == 1
    path.unlink()
    assert credential() == (1, fresh)
    assert token_text(fresh)[:20] not in repr(credential()) + caplog.text
    with pytest.raises(UsageError, match="cannot read"):
        TokenFile(path)
