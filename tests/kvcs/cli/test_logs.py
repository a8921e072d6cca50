"""kvcs.cli.logs: one line each, on stderr."""

from __future__ import annotations

import logging

from kvcs.cli.logs import set_up
from tests.support.cli import Out


def test_one_line_each(capsys: Out) -> None:
    log = logging.getLogger("kvcs.test")
    set_up(0)
    set_up(0)
    log.warning("two\nlines")
    log.info("not shown")
    try:
        raise ValueError("a\x1b[31mfault")
    except ValueError:
        log.exception("with a fault")
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "kvcs: warning: two lines",
        "kvcs: error: with a fault (ValueError: a\\x1b[31mfault)",
    ]


def test_more_with_every_v(capsys: Out) -> None:
    log = logging.getLogger("kvcs.test")
    for verbosity, shown in ((1, 1), (2, 2), (9, 2)):
        set_up(verbosity)
        log.info("info")
        log.debug("debug")
        assert capsys.readouterr().err.count("\n") == shown
