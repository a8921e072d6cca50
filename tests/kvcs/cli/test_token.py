"""kvcs.cli.token and token_facts: tokens are made, shown and checked, with statuses that programs can rely on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcs.access.tokenfile import load_token, token_text
from kvcs.cli.main import main
from kvcs.kvsp.identity import PROFILE
from kvcs.scopekey import load_scope_key
from tests.support.cli import Out
from tests.support.tokens import KVCS, SCOPE

HEX = SCOPE.hex()
CONSUMER = [3, 4, 5, 7, 8]


@pytest.fixture
def keys(tmp_path: Path, capsys: Out) -> Path:
    """A directory with a pair, and a shared key."""
    for name, alg in (("pair.pem", "ES256"), ("shared.jwk", "HS256")):
        assert main(["keygen", "--alg", alg, "--output", str(tmp_path / name)]) == 0
    capsys.readouterr()
    return tmp_path


def run(capsys: Out, *args: object, status: int = 0) -> str:
    """What is said on stdout; with another status, the complaint."""
    capsys.readouterr()
    assert main([str(arg) for arg in args]) == status
    told = capsys.readouterr()
    if status:
        (line,) = told.err.splitlines()
        assert line.startswith("kvcs: ")
        return line + told.out
    assert told.err == ""
    return told.out


def made(keys: Path, capsys: Out, *args: object, key: str = "shared.jwk") -> Path:
    path = keys / "token"
    path.unlink(missing_ok=True)
    given = args if "--scope" in args or "--scope-key" in args else ("--scope", HEX, *args)
    run(capsys, "token", "make", "--key", keys / key, "--output", path, *given)
    return path


def shown(path: Path, capsys: Out) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(run(capsys, "token", "show", path, "--json"))
    return facts


def test_a_token_says_what_it_was_made_for(keys: Path, capsys: Out) -> None:
    path = made(
        keys,
        capsys,
        *("--iss", "me", "--aud", "a", "--aud", "b", "--expires", "2h", "--starts", "1m"),
        *("--revalidate", "30s", "--cti", "0aff", "--allow", "publish"),
    )
    facts = shown(path, capsys)
    assert facts["form"] == "CWT"
    assert facts["algorithm"] == "HMAC 256/256"
    assert (facts["iss"], facts["aud"], facts["cti"]) == ("me", ["a", "b"], "0aff")
    assert facts["revalidate"] == 30
    assert facts["nbf"] < facts["exp"]
    (scope,) = facts["scopes"]
    assert scope["actions"] == ["publish_namespace", "publish"]
    assert scope["namespace"] == ["kvcs-1", HEX]
    people = run(capsys, "token", "show", path)
    assert f"publish_namespace, publish: kvcs-1 / {HEX}" in people
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_scope_key_stands_for_its_scope(keys: Path, capsys: Out) -> None:
    key = keys / "scope.key"
    key.write_text("ab" * 32, "ascii")
    scope = PROFILE.scope_id(load_scope_key(key).octets)
    path = made(keys, capsys, "--scope-key", key)
    assert shown(path, capsys)["scopes"][0]["namespace"] == ["kvcs-1", scope.hex()]


def test_without_a_file_it_goes_to_stdout(keys: Path, capsys: Out) -> None:
    line = run(capsys, "token", "make", "--key", keys / "pair.pem", "--scope", HEX)
    path = keys / "token"
    path.write_text(line, "ascii")
    assert token_text(load_token(path)) == line.strip()
    check = run(capsys, "token", "check", path, "--auth-keys", keys / "pair.pem.pub")
    assert "accepted     yes" in check


def test_secrets_are_not_shown(keys: Path, capsys: Out) -> None:
    """Neither the key nor the seal; `make` without --output is the only one that prints a token."""
    path = made(keys, capsys)
    octets = load_token(path)
    secrets = [path.read_text("ascii").strip(), octets.hex(), octets[-32:].hex()]
    secrets.append(json.loads((keys / "shared.jwk").read_text("ascii"))["k"])
    keyed = ["--auth-keys", keys / "shared.jwk"]
    told = [
        run(capsys, "token", "show", path),
        run(capsys, "token", "show", path, "--json"),
        run(capsys, "token", "check", path, *keyed),
        run(capsys, "token", "check", path, *keyed, "--json", "--at", 2e9, status=5),
        run(capsys, "token", "check", path, "--auth-keys", path, status=2),
        run(capsys, "token", "show", secrets[0], status=2),
        run(capsys, "token", "show", keys / "shared.jwk", status=2),
    ]
    for secret in secrets:
        assert all(secret not in text and secret[:24] not in text for text in told)


def test_check_says_what_a_relay_would(keys: Path, capsys: Out) -> None:
    """R2: 0 when it is accepted and grants what is asked for; 5 with the reason when not."""
    path = made(keys, capsys, "--iss", "me", "--aud", "here", "--expires", "90")
    anywhere = ["token", "check", path, "--auth-keys", keys / "shared.jwk"]
    assert "it names an audience (aud)" in run(capsys, *anywhere, status=5)
    check = [*anywhere, "--auth-audience", "here"]
    within = ["--scope", HEX]
    for args in (
        [],
        ["--auth-issuer", "me"],
        within,
        ["--action", "subscribe", *within, "--track", "k.raw.s0"],
        ["--action", "subscribe-namespace", "--namespace", f"6b7663732d31/{HEX}/00"],
    ):
        run(capsys, *check, *args)
    for args, why in (
        (["--auth-issuer", "you"], "its issuer (iss) is not trusted here"),
        (["--at", "1"], ""),
        (["--at", "3000000000"], "it has expired (exp)"),
        (["--action", "publish", *within], "it does not grant publish there"),
        (["--action", "fetch", "--scope", "00" * 16], "it does not grant fetch there"),
        (["--action", "subscribe-namespace", "--namespace", "6b7663732d31"], "names the scope"),
        (["--action", "subscribe-namespace", "--namespace", ""], "names the scope"),
        (["--scope", "00" * 16], "it grants nothing in this scope"),
    ):
        if why:
            assert why in run(capsys, *check, *args, status=5)
    there = [*anywhere, "--auth-audience", "there"]
    assert "it is meant for others (aud)" in run(capsys, *there, status=5)
    other = ["token", "check", path, "--auth-keys", keys / "pair.pem.pub"]
    assert "not trusted here" in run(capsys, *other, status=5)
    facts = json.loads(run(capsys, *check, *within, "--json"))
    assert facts["accepted"] is True
    assert set(facts["granted"]) == {
        "subscribe_namespace",
        "subscribe_tracks",
        "subscribe",
        "fetch",
        "track_status",
        "request_update",
    }


def test_the_compact_form_is_behind_its_option(keys: Path, capsys: Out) -> None:
    path, ring = keys / "token", keys / "vector.cose"
    path.write_text(KVCS["tokens"][0]["compact_c4m_vector_form"], "ascii")
    ring.write_bytes(bytes.fromhex("a40104024263310305205820" + KVCS["hmac_key"]))
    assert shown(path, capsys)["form"] == "compact"
    check = ["token", "check", path, "--auth-keys", ring, "--at", 1.9e9]
    check += ["--auth-audience", "relay.kvcs.test"]
    assert "compact form is not taken here" in run(capsys, *check, status=5)
    run(capsys, *check, "--c4m-compact")


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["make"], "--key"),
        (["make", "--key", "none", "--scope", HEX], "cannot read what --key names"),
        (["make", "--key", "shared.jwk"], "at least one scope"),
        (["make", "--key", "shared.jwk", "--scope", "00"], "expected 32 hex digits"),
        (["make", "--key", "shared.jwk", "--scope", "x"], "expected hex digits"),
        (["make", "--key", "shared.jwk", "--scope", HEX, "--allow", "all"], "publish, subscribe"),
        (["make", "--key", "shared.jwk", "--scope", HEX, "--expires", "0"], "30m, 12h or 7d"),
        (["make", "--key", "shared.jwk", "--scope", HEX, "--expires", "1y"], "30m, 12h or 7d"),
        (["make", "--key", "pair.pem.pub", "--scope", HEX], "expected one private or shared key"),
        (["make", "--key", "shared.jwk", "--scope", HEX, "--output", "pair.pem"], "exists"),
        (["show", "none"], "cannot read what FILE names"),
        (["show", "pair.pem"], "holds no token"),
        (["check", "shared.jwk"], "--auth-keys"),
        (["check", "shared.jwk", "--auth-keys", "pair.pem"], "private key"),
        (["check", "t", "--auth-keys", "shared.jwk", "--track", "t"], "there is no"),
        (["check", "t", "--auth-keys", "shared.jwk", "--action", "fetch"], "give one of them"),
        (["check", "t", "--auth-keys", "shared.jwk", "--action", "dance"], "dance"),
        (["dance"], "dance"),
    ],
)
def test_faults_of_usage(
    keys: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch, args: list[str], why: str
) -> None:
    monkeypatch.chdir(keys)
    assert why in run(capsys, "token", *args, status=2)


def test_a_token_with_claims_that_are_not_known_says_so(keys: Path, capsys: Out) -> None:
    from tests.support.tokens import C4M

    path = keys / "token"
    vector = next(v for v in C4M["Token Structure"] if v["id"] == "token_hmac_full")
    path.write_text(vector["token"], "ascii")
    assert "catnip" in run(capsys, "token", "show", path, status=5)
