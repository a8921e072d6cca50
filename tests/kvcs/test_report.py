"""What a retrieval came to, as `--json` and people see it."""

from __future__ import annotations

import json

from kvcs.assembly import Gap
from kvcs.report import Guarantee, Report, describe, describe_absent, not_guaranteed

GAPS = [Gap("k.raw.s0", layer, ((0, 0), (2, 5))) for layer in range(6)]


def test_the_json_object() -> None:
    """C4: lower-case hex, integers, missing blocks as inclusive ranges; nothing is left out."""
    report = Report(publication=bytes(range(16)), missing=GAPS[:1], seconds=1.23456789)
    document = json.loads(json.dumps(report.to_json()))
    assert document == {
        "status": "incomplete",
        "publication": bytes(range(16)).hex(),
        "source": None,
        "layers": 0,
        "blocks": 0,
        "bytes": 0,
        "objects": 0,
        "discarded": 0,
        "recovered": 0,
        "seconds": 1.234568,
        "first_layer_seconds": None,
        "missing": [{"track": "k.raw.s0", "layer": 0, "blocks": [[0, 0], [2, 5]]}],
        "error": None,
        "not_guaranteed": [],
    }
    assert Report(first_layer_seconds=0.12345678).to_json()["first_layer_seconds"] == 0.123457
    assert Report().to_json()["publication"] is None


def test_gaps_in_a_line() -> None:
    """C4: the first few spelt out, how many more there are."""
    assert describe([]) == ""
    assert describe(GAPS[:1]) == "k.raw.s0 layer 0 blocks 0,2-5"
    assert describe(GAPS, 2) == (
        "k.raw.s0 layer 0 blocks 0,2-5; k.raw.s0 layer 1 blocks 0,2-5; and 4 more"
    )


def test_what_is_not_guaranteed() -> None:
    """X5, X3, M9: digests alone protect against nobody who can replace them; each measure takes something off."""
    bare = not_guaranteed(signed=False)
    assert bare == tuple(Guarantee)
    assert not_guaranteed(signed=True) == (Guarantee.CONFIDENTIALITY,)
    assert not_guaranteed(signed=False, encrypted=True) == (Guarantee.AUTHENTICITY,)
    assert not_guaranteed(signed=True, encrypted=True) == ()
    report = Report(not_guaranteed=bare)
    assert report.to_json()["not_guaranteed"] == [
        "confidentiality",
        "integrity against relays",
        "authenticity of the producer",
    ]
    assert describe_absent(report) == (
        "not guaranteed: confidentiality, integrity against relays, authenticity of the producer; "
        "that takes --require-signature and encryption"
    )
    assert describe_absent(Report()) == ""
