"""What is inside a Secure Object once it is open: any member of the scope may have put anything there."""

from __future__ import annotations

from kvcs.payload import Discard
from kvcs.secure_objects import LEAST_KEY_ID, ObjectCipher, Suite, aad
from moqt import FullTrackName, Location
from tests.fuzz.target import Target

_NAME = FullTrackName((b"kvcs-1",), b"k.raw.s0")
_PLACE, _PRIORITY = Location(1, 2), 3
_CIPHER = ObjectCipher(bytes(range(32)), Suite.AES_128_GCM_SHA256_128, LEAST_KEY_ID, _NAME)


def _plaintext(data: bytes) -> None:
    """Whatever is sealed: a payload comes out that lies in it, or nothing."""
    extra = aad(_PLACE, _PRIORITY, _CIPHER.immutable)
    sealed = _CIPHER._aead.encrypt(_CIPHER.nonce(_PLACE), data, extra)
    payload = bytes(_CIPHER.open(_PLACE, _PRIORITY, _CIPHER.immutable, sealed))
    assert payload in data


TARGETS = (
    Target(
        name="sealed-plaintext",
        run=_plaintext,
        errors=(Discard,),
        seeds=[b"\x02hi", b"\x02hi\x0a\x01x", b"\x02hi\x00\x0a\x01x"],
        words=[b"\x0a", b"\x00\x0a", b"\xff" * 9, b"\x80\x02"],
    ),
)
