"""SECURITY.md on secrets that are given in the place of the file that holds them: nothing of them is repeated."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from kvcs.cli.main import main
from kvcs.producer_keys import Algorithm, generate
from tests.support.cli import Files
from tests.support.tokens import SHARED, make

TOKEN = make()
URLSAFE = base64.urlsafe_b64encode(TOKEN).rstrip(b"=").decode("ascii")
K = base64.urlsafe_b64encode(SHARED.octets).rstrip(b"=").decode("ascii")
PAIR = generate(Algorithm.EDDSA)
PRIVATE = PAIR.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
PUBLIC = PAIR.public.key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
SECRETS = {
    "token": URLSAFE,
    "padded": base64.urlsafe_b64encode(TOKEN + bytes(1 + len(TOKEN) % 3)).decode("ascii"),
    "standard": base64.b64encode(TOKEN).decode("ascii"),
    "bearer": f"Bearer {URLSAFE}",
    "quoted": f'"{URLSAFE}"',
    "hex": "ab1e2d3c" * 8,
    "long hex": "ab1e2d3c" * 16,
    "jwk": json.dumps({"kty": "oct", "kid": "k1", "k": K}),
    "ring": json.dumps({"keys": [{"kty": "oct", "kid": "10000000000", "k": K}]}),
    "pem": PRIVATE.decode("ascii"),
}
SUBSCRIBE = ("--scope-key", "--auth-token", "--decrypt", "--require-signature", "--client-key")
FLAGS = [
    *(("subscribe", flag) for flag in SUBSCRIBE),
    *(("publish", flag) for flag in ("--scope-key", "--sign", "--encrypt", "--key")),
    ("relay", "--auth-keys"),
    ("relay", "--key"),
    ("token make", "--key"),
    ("token make", "--scope-key"),
    ("token show", "FILE"),
    ("token check", "FILE"),
    ("keys", "--scope-key"),
]


def words(files: Files, certificates: Path, command: str, without: str) -> list[str]:
    """What the command needs to get as far as the flag that is not there."""
    cache, pem = str(files.cache), str(certificates / "server.pem")
    flags = {
        "subscribe": {
            **dict(zip(files.key[::2], files.key[1::2], strict=True)),
            "--descriptor": cache,
            "--tokens": cache,
            "--output": str(files.directory / "output"),
            "--client-cert": pem,
            "--client-key": str(certificates / "server-key.pem"),
        },
        "publish": {"--scope-key": files.key[1], "--listen": "127.0.0.1:0"}
        | ({"--cert": pem} if without == "--key" else {}),
        "relay": {"--listen": "127.0.0.1:0", "--cert": pem}
        | ({} if without == "--key" else {"--key": str(certificates / "server-key.pem")}),
        "token make": {"--key": str(certificates / "server-key.pem"), "--scope": "00" * 16},
        "token show": {},
        "token check": {"--auth-keys": str(files.directory / "public.pem")},
        "keys": {"--descriptor": cache, "--tokens": cache},
    }[command]
    given = [word for flag, value in flags.items() if flag != without for word in (flag, value)]
    places = {
        "subscribe": ["moqt://127.0.0.1:1", "--dry-run", "--json"],
        "publish": [cache, "--dry-run"],
    }
    return [*command.split(), *given, *places.get(command, [])]


@pytest.mark.parametrize(("command", "flag"), FLAGS)
@pytest.mark.parametrize("variable", [False, True])
def test_a_secret_in_the_place_of_its_file(
    command: str,
    flag: str,
    variable: bool,
    tmp_path: Path,
    certificates: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """S8: scope keys, tokens and keys of every kind, as a flag or a variable; what is said names the flag."""
    files = Files.make(tmp_path)
    (tmp_path / "public.pem").write_bytes(PUBLIC)
    needed = words(files, certificates, command, flag)
    for name, secret in SECRETS.items():
        given = ["--", secret] if flag == "FILE" else [flag, secret]
        if variable:
            monkeypatch.setenv(f"KVCS_{flag.strip('-').replace('-', '_').upper()}", secret)
            given = []
        status = main([*needed, *given])
        captured = capsys.readouterr()
        told = captured.out + captured.err
        for piece in re.findall(r"[A-Za-z0-9_-]{20,}", secret):
            assert piece[:20] not in told, (name, told)
        if variable and flag == "--auth-token" and name == "token":
            assert status == 0  # it may hold the token itself
        else:
            assert status == 2, (name, told)
            assert flag in told or "not the token itself" in told, (name, told)
