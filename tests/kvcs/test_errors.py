"""kvcs.errors: the exit status of each error."""

from __future__ import annotations

import pytest

from kvcs import errors


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (errors.KvcsError, 1),
        (errors.UsageError, 2),
        (errors.PublicationNotFound, 3),
        (errors.Incomplete, 4),
        (errors.Unauthorised, 5),
        (errors.Conflict, 5),
        (errors.DigestConflict, 5),
        (errors.ManifestError, 5),
        (errors.SignatureError, 5),
        (errors.ProtectionError, 5),
        (errors.KeyExhausted, 2),
        (errors.SourceChanged, 1),
        (errors.PublicationStopped, 1),
        (errors.DuplicatePayload, 1),
    ],
)
def test_exit_status(kind: type[errors.KvcsError], status: int) -> None:
    fault = kind("what came")
    assert isinstance(fault, errors.KvcsError)
    assert (fault.exit_status, str(fault)) == (status, "what came")


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (errors.KvcsError, "error"),
        (errors.UsageError, "error"),
        (errors.PublicationNotFound, "not_found"),
        (errors.Incomplete, "incomplete"),
        (errors.Unauthorised, "unauthorised"),
        (errors.Conflict, "conflict"),
        (errors.ManifestError, "conflict"),
        (errors.SignatureError, "conflict"),
    ],
)
def test_the_word_for_it(kind: type[errors.KvcsError], word: str) -> None:
    """A refusal and a contradiction share an exit status, not a word."""
    assert kind.status == word
