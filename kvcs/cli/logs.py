"""Logs on stderr, one line each."""

from __future__ import annotations

import logging

import click

from kvcs.cli.text import one_line

LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


class _Handler(logging.Handler):
    """Writes to what sys.stderr is at that moment, so that a progress bar can make room."""

    def emit(self, record: logging.LogRecord) -> None:
        text = one_line(record.getMessage())
        if record.exc_info and record.exc_info[1] is not None:
            fault = record.exc_info[1]
            text += f" ({one_line(f'{type(fault).__name__}: {fault}')})"
        click.echo(f"kvcs: {record.levelname.lower()}: {text}", err=True)


def set_up(verbosity: int) -> None:
    """Warnings; once more with each -v."""
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _Handler)]:
        root.removeHandler(handler)
    root.addHandler(_Handler())
    root.setLevel(LEVELS[min(verbosity, len(LEVELS) - 1)])
    # What aioquic warns of ends a connection, and that is told as ours, with what to do about it.
    logging.getLogger("quic").setLevel(logging.NOTSET if verbosity else logging.ERROR)


def _chosen(ctx: click.Context, param: click.Parameter, value: int) -> int:
    set_up(value)
    return value


verbose_option = click.option(
    "-v",
    "--verbose",
    count=True,
    expose_value=False,
    callback=_chosen,
    help="Log more; twice for everything.",
)
"""Adds -v; logging is set up before the command runs."""
