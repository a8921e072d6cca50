"""The programs `kvcs`, `kvcs-publish` and `kvcs-subscribe`.

A subcommand's module is imported when it runs. Settings come from flags, then KVCS_<FLAG> in the
environment, then kvcs.toml. Every error of ours becomes one line on stderr and the exit status that
belongs to it; anything else is a defect and shows its traceback.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence

import click

from kvcs import __version__
from kvcs.cli.config import Settings, default_map, find_config, flag_of
from kvcs.cli.text import one_line
from kvcs.errors import KvcsError, UsageError
from kvcs.interruption import INTERRUPTED, ends_at_once
from moqt.errors import DeadlineExceeded, MoqtError, RequestErrorCode, RequestRejected

COMMANDS = {
    "publish": "Publish a KV cache file.",
    "subscribe": "Receive a KV cache, verified, into a file.",
    "relay": "Relay between publishers and consumers, with a cache.",
    "keys": "Show the identifiers of a prompt.",
    "keygen": "Make keys: to sign manifests, to seal tokens, to encrypt with.",
    "token": "Make, show and check authorisation tokens.",
    "inspect": "Show what a KV cache file holds.",
    "verify": "Check a KV cache file, or compare two.",
    "sample": "Write a KV cache file of random numbers.",
    "demo": "Publish and receive a real cache on this machine.",
    "bench": "Measure throughput beside plain QUIC streams.",
}
"""Subcommands and their one-line help; each lives in the module of its name."""

ENVIRONMENT = "KVCS"

_REFUSALS = frozenset(
    {
        RequestErrorCode.UNAUTHORIZED,
        RequestErrorCode.MALFORMED_AUTH_TOKEN,
        RequestErrorCode.EXPIRED_AUTH_TOKEN,
    }
)
_USAGE, _INCOMPLETE, _REFUSED = 2, 4, 5


def load(name: str) -> click.Command:
    """The command `name`; each of its options also reads KVCS_<FLAG>."""
    with ends_at_once():
        command: click.Command = importlib.import_module(f"kvcs.cli.{name}").command
    within = command.commands.values() if isinstance(command, click.Group) else ()
    for param in (param for each in (command, *within) for param in each.params):
        if isinstance(param, click.Option) and param.envvar is None:
            param.envvar = f"{ENVIRONMENT}_{flag_of(param).upper()}"
    return command


class _Commands(click.Group):
    """Lists the table and imports what is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return load(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in self.list_commands(ctx)])


@click.group(cls=_Commands, invoke_without_command=True)
@click.option(
    "--config",
    envvar=f"{ENVIRONMENT}_CONFIG",
    metavar="FILE",
    help="Settings; without it kvcs.toml where you are, if it is there.",
)
@click.version_option(__version__, prog_name="kvcs", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context, config: str | None) -> None:
    """Publish a language model's KV cache over Media over QUIC, and use it while it arrives."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
    else:
        ctx.default_map = _settings(config, as_json=bool(ctx.obj))


def _settings(config: str | None, *, as_json: bool) -> Settings:
    try:
        return default_map(find_config(config), COMMANDS, load)
    except UsageError as fault:
        _report(str(fault), as_json=as_json)
        raise


def run(program: Callable[[], object], *, as_json: bool = False) -> int:
    """Runs a command and returns the exit status; errors of ours become one line on stderr.

    With `as_json` what keeps the command from starting is an object on stdout too.
    """
    _occupy_standard_streams()
    try:
        status = program()
        if sys.stdout is not None:
            sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt):
        return _complain("interrupted", INTERRUPTED)
    except click.UsageError as fault:
        path = fault.ctx.command_path if fault.ctx else "kvcs"
        text = f"{fault.format_message()} See {path} --help."
        _report(text, as_json=as_json)
        return _complain(text, _USAGE)
    except click.ClickException as fault:
        return _complain(fault.format_message(), _USAGE)
    except (KvcsError, MoqtError) as fault:
        return _complain(str(fault), status_of(fault))
    except BrokenPipeError:
        _drop_output()
        return 1
    except OSError as fault:
        _drop_output()
        where = f"{fault.filename}: " if fault.filename is not None else ""
        return _complain(f"{where}{fault.strerror or fault}", _USAGE if where else 1)
    return status if isinstance(status, int) else 0


def _occupy_standard_streams() -> None:
    """Opens /dev/null in the place of standard streams that are closed: files and sockets would get their numbers,
    which uvloop does not survive.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


def status_of(fault: KvcsError | MoqtError) -> int:
    """The exit status that belongs to an error."""
    if isinstance(fault, KvcsError):
        return fault.exit_status
    if isinstance(fault, RequestRejected) and fault.code in _REFUSALS:
        return _REFUSED
    return _INCOMPLETE if isinstance(fault, DeadlineExceeded) else 1


def _drop_output() -> None:
    """Forgets what stdout did not take: Python would try, and complain, again at its exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(text: str, *, as_json: bool) -> None:
    if as_json:
        report = importlib.import_module("kvcs.report").Report(status="error", error=one_line(text))
        click.echo(json.dumps(report.to_json()))


def _wants_report(words: Sequence[str]) -> bool:
    """Whether words, some of which may be wrong, ask for the object of publish or subscribe."""
    return "--json" in words and not {"publish", "subscribe"}.isdisjoint(words)


def _complain(text: str, status: int) -> int:
    click.echo(f"kvcs: {one_line(text)}", err=True)
    return status


def main(args: Sequence[str] | None = None) -> int:
    """The program `kvcs`; `args` without the program's name."""
    given = sys.argv[1:] if args is None else list(args)
    as_json = _wants_report(given)
    return run(lambda: cli.main(given, "kvcs", standalone_mode=False, obj=as_json), as_json=as_json)


def publish_main() -> int:
    """The program `kvcs-publish`."""
    return _alone("publish")


def subscribe_main() -> int:
    """The program `kvcs-subscribe`."""
    return _alone("subscribe")


def _alone(name: str) -> int:
    as_json = "--json" in sys.argv[1:]

    def program() -> object:
        config = os.environ.get(f"{ENVIRONMENT}_CONFIG")
        settings = _settings(config, as_json=as_json).get(name)
        return load(name).main(None, f"kvcs-{name}", standalone_mode=False, default_map=settings)

    return run(program, as_json=as_json)


if __name__ == "__main__":
    sys.exit(main())
