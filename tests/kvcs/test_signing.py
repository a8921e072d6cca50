"""kvcs.signing: the vectors, what is written, and who is believed."""

from __future__ import annotations

import random

import cbor2
import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec

from kvcs.cose import open_sign1
from kvcs.errors import Conflict, ManifestError, SignatureError, UsageError
from kvcs.producer_keys import Algorithm, PublicKey, generate
from kvcs.signing import Signer, TrustedKeys
from tests.support.keys import COSE, PAYLOAD, PRODUCERS, TRUSTED, message

VALID = [v["id"] for v in COSE["vectors"] if v["valid"]]
REASONS: dict[str, tuple[type[Conflict], str]] = {
    "bad_signature_bit": (SignatureError, 'not one of key "prod-es256-1"'),
    "bad_payload_changed": (SignatureError, 'not one of key "prod-es256-1"'),
    "bad_wrong_key": (SignatureError, 'not one of key "prod-ed25519-1"'),
    "bad_unknown_kid": (SignatureError, 'key "nobody" as its producer\'s, which is not trusted'),
    "bad_no_kid": (ManifestError, "kid"),
    "bad_kid_text": (ManifestError, "kid"),
    "bad_kid_both_differ": (ManifestError, "header 4 is both protected and unprotected"),
    "bad_alg_unprotected": (ManifestError, "protected header names no algorithm"),
    "bad_alg_key_mismatch": (SignatureError, 'key "prod-es256-1" is for ES256, not for EdDSA'),
    "bad_alg_es384": (ManifestError, "it is -35"),
    "bad_alg_esp256": (ManifestError, "it is -9"),
    "bad_crit_unknown": (ManifestError, "critical"),
    "bad_detached": (ManifestError, "expected octets as protected header, payload"),
    "bad_tag_98": (ManifestError, "tag that does not belong"),
    "bad_trailing": (ManifestError, "octets follow"),
    "bad_truncated": (ManifestError, "cut short"),
    "bad_der_signature": (ManifestError, "must have 64 octets, it has 70"),
    "bad_zero_signature": (SignatureError, 'not one of key "prod-es256-1"'),
    "bad_dup_label": (ManifestError, "label twice"),
    "bad_context": (SignatureError, 'not one of key "prod-es256-1"'),
    "bad_external_aad": (SignatureError, 'not one of key "prod-es256-1"'),
    "bad_payload_text": (ManifestError, "expected octets as protected header, payload"),
    "bad_not_cbor": (ManifestError, "cut short"),
}
MUTATIONS = 20_000


def test_the_vectors_are_all_there() -> None:
    refused = {v["id"] for v in COSE["vectors"] if not v["valid"]}
    assert (len(VALID), len(refused)) == (7, 23)
    assert REASONS.keys() == refused


@pytest.mark.parametrize("name", VALID)
def test_vectors_that_are_accepted(name: str) -> None:
    """M8, M9: kid in either header, tagged or not, other headers, either s."""
    assert TRUSTED.open(message(name)) == PAYLOAD


@pytest.mark.parametrize("name", REASONS)
def test_vectors_that_are_refused(name: str) -> None:
    """M8, M9: each for its reason, with exit status 5."""
    kind, reason = REASONS[name]
    with pytest.raises(kind, match=reason) as caught:
        TRUSTED.open(message(name))
    assert caught.value.exit_status == 5
    assert str(caught.value).startswith("manifest.cose: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "vector"),
    [("es256", "es256_kid_protected_tagged"), ("ed25519", "eddsa_kid_protected_tagged")],
)
def test_what_is_written(key: str, vector: str) -> None:
    """M8: tag 18, alg and kid protected in that order, nothing unprotected; the same octets every time."""
    signer = Signer(PRODUCERS[key])
    signed = signer.sign(PAYLOAD)
    assert signed == message(vector)
    opened = open_sign1(signed)
    assert signed[0] == 0xD2
    assert opened.protected == cbor2.dumps({1: int(signer.algorithm), 4: signer.key_id})
    assert dict(opened.unprotected) == {}
    assert signer.enclose(PAYLOAD, opened.signature) == signed


def test_an_openssl_without_deterministic_nonces(monkeypatch: pytest.MonkeyPatch) -> None:
    """M8: signs all the same; the signature differs, and is kept by whoever needs the same octets again."""
    original = ec.ECDSA

    def old(algorithm: object, *, deterministic_signing: bool = False) -> ec.ECDSA:
        if deterministic_signing:
            raise UnsupportedAlgorithm("not here")
        return original(algorithm)  # type: ignore[arg-type]

    monkeypatch.setattr(ec, "ECDSA", old)
    signer = Signer(PRODUCERS["es256"])
    first, second = signer.sign(PAYLOAD), signer.sign(PAYLOAD)
    assert first != second
    assert TRUSTED.open(first) == TRUSTED.open(second) == PAYLOAD


def test_python_ecdsa_has_no_part_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """M8: its signing tells the key through its timing."""

    def never(*_: object, **__: object) -> None:
        raise NotImplementedError

    for name in (
        "keys.SigningKey.from_secret_exponent",
        "keys.VerifyingKey.from_public_point",
        "ellipticcurve.Point.__init__",
    ):
        monkeypatch.setattr(f"ecdsa.{name}", never)
    assert TRUSTED.open(Signer(PRODUCERS["es256"]).sign(PAYLOAD)) == PAYLOAD


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_a_new_key(algorithm: Algorithm) -> None:
    """M8: both algorithms, and payloads of any size."""
    key = generate(algorithm)
    trusted = TrustedKeys([key.public])
    for payload in (b"", b"{}", bytes(100_000)):
        signed = Signer(key).sign(payload)
        assert trusted.open(signed) == payload
        with pytest.raises(SignatureError, match="not trusted"):
            TRUSTED.open(signed)


def test_several_producers() -> None:
    """M9: each with an identifier of its own; a key that was taken out is refused."""
    old, new = generate(Algorithm.ES256), generate(Algorithm.EDDSA)
    both = TrustedKeys([old.public, new.public, old.public])
    assert len(both) == 2
    for key in (old, new):
        assert both.open(Signer(key).sign(PAYLOAD)) == PAYLOAD
    with pytest.raises(SignatureError):
        TrustedKeys([new.public]).open(Signer(old).sign(PAYLOAD))
    with pytest.raises(UsageError, match=r"two keys have the identifier \(kid\) [0-9a-f]{16}$"):
        TrustedKeys([old.public, PublicKey(new.public.key, old.key_id)])
    with pytest.raises(UsageError, match="no producer's key"):
        TrustedKeys([])


@pytest.mark.parametrize("key", ["es256", "ed25519"])
def test_mutations_never_change_the_payload(key: str) -> None:
    """M8, M9: 20,000 seeded mutations; what is accepted all the same carries the payload that was signed."""
    signed = Signer(PRODUCERS[key]).sign(PAYLOAD[:120])
    chaos = random.Random(f"22 {key}")
    refused = 0
    for _ in range(MUTATIONS):
        changed = bytearray(signed)
        for _ in range(chaos.randint(1, 3)):
            at = chaos.randrange(len(changed))
            match chaos.randrange(4):
                case 0:
                    changed[at] ^= 1 << chaos.randrange(8)
                case 1:
                    del changed[at : at + chaos.randint(1, 3)]
                case 2:
                    changed[at:at] = chaos.randbytes(chaos.randint(1, 3))
                case _:
                    changed[at:at] = changed[at : at + chaos.randint(1, 9)]
        try:
            assert TRUSTED.open(bytes(changed)) == PAYLOAD[:120]
        except (ManifestError, SignatureError):
            refused += 1
    assert refused > MUTATIONS * 0.9
