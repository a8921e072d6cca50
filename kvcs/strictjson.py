"""JSON as this package reads it: bounded, without duplicate names, with faults as the caller's own error."""

from __future__ import annotations

import json
from typing import NoReturn

from kvcs.errors import KvcsError

_MAX_DIGITS = 20
"""Digits of an integer; everything that is read fits in 64 bits."""


class _Fault(ValueError):
    """What a hook of the JSON parser objects to."""


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _Fault("a name occurs twice in one object")
    return members


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise _Fault("an integer is out of range")
    return int(digits)


def _no_fraction(_: str) -> NoReturn:
    raise _Fault("a number is not an integer; write such values as strings")


def _no_constant(name: str) -> NoReturn:
    raise _Fault(f"{name} is not JSON")


def loads(
    data: bytes,
    *,
    what: str,
    max_octets: int,
    error: type[KvcsError],
    fractions: bool = False,
    max_values: int | None = None,
) -> object:
    """The JSON value in `data`; raises `error` for anything malformed or above `max_octets`.

    `fractions` tolerates numbers that are not integers, for members nobody looks at. `max_values` bounds the
    memory that small values take, many times that of their text; commas and brackets in strings count as well.
    """
    if len(data) > max_octets:
        raise error(f"{what}: at most {max_octets} octets are accepted, it has {len(data)}")
    if max_values is not None and sum(map(data.count, (b",", b"[", b"{"))) > max_values:
        raise error(f"{what}: at most {max_values} values are accepted, it has more")
    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_no_duplicates,
            parse_int=_integer,
            parse_float=None if fractions else _no_fraction,
            parse_constant=_no_constant,
        )
    except UnicodeDecodeError as fault:
        raise error(f"{what}: expected UTF-8, octet {fault.start} is not") from None
    except json.JSONDecodeError as fault:
        raise error(f"{what}: not JSON: {fault.msg} at character {fault.pos}") from None
    except RecursionError:
        raise error(f"{what}: nested too deeply") from None
    except ValueError as fault:
        raise error(f"{what}: {fault}") from None


def shown(value: object, limit: int = 60) -> str:
    """`value` as it may stand in a one-line message: escaped and cut."""
    if not isinstance(value, str | bytes | int | float | None):
        return type(value).__name__
    if isinstance(value, int) and value.bit_length() > 128:
        return "a huge integer"
    text = ascii(value[: limit + 1]) if isinstance(value, str | bytes) else ascii(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
