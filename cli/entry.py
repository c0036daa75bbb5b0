"""All commands of `fedhandoff`, and the run of one of them."""

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer
import typer.core
from click import Abort, ClickException
from click.exceptions import NoArgsIsHelpError

from cli import INTERRUPTED, authority, hospital, models, runs, server
from strategies.protocol.code import app_version
from strategies.protocol.console import Console
from strategies.protocol.files import reason_of
from strategies.protocol.text import Screen

typer.core.HAS_RICH = False  # plain help: `Screen` would show colours as text
app = typer.Typer(
    no_args_is_help=True,
    suggest_commands=False,  # click suggests them, too
    pretty_exceptions_enable=False,  # they would print the values of variables, keys among them
    context_settings={"max_content_width": 100},
)
for module in (runs, authority, models):
    app.registered_commands += module.app.registered_commands
app.add_typer(server.app, name="server")
app.add_typer(hospital.app, name="hospital")


def print_version(wanted: bool) -> None:
    """Print the versions of this application and of Flower, and end the command."""
    if wanted:
        print(f"fedhandoff {app_version()}, flwr {version('flwr')}")
        raise typer.Exit


@app.callback()
def fedhandoff(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=print_version)
    ] = False,
) -> None:
    """Hospitals train one another's models: simulate runs, and take part in real ones.

    Each command has an example: fedhandoff check --help
    """


def run(words: Sequence[str]) -> int:
    """Run one command, and return its status.

    Raises:
        KeyboardInterrupt: The user pressed Ctrl-C.
    """
    Screen.install()
    Console.install()
    try:
        status = _run(words)
        sys.stdout.flush()
    except OSError as error:  # `Command` names all others
        reason = f"the output cannot be written ({reason_of(error)})"
        print(f"fedhandoff: {reason}: send it to another place.", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it again
        status = 2
    return status


def _run(words: Sequence[str]) -> int:
    try:
        status = app(words, prog_name="fedhandoff", standalone_mode=False, obj=words)
    except NoArgsIsHelpError as error:
        print(error.format_message())
        status = 2
    except ClickException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "fedhandoff"
        print(f"{command}: {error.format_message()}", file=sys.stderr)
        status = 2
    except Abort as error:
        raise KeyboardInterrupt from error
    if status == INTERRUPTED:  # typer returns it
        raise KeyboardInterrupt
    return int(status or 0)
