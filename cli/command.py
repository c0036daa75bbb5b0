"""The parts that all commands share: an example, `~` in paths, and errors in one line."""

import inspect
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from click import Argument, Context, HelpFormatter, UsageError
from click import Path as ClickPath
from typer.core import TyperCommand

from deploy.errors import DeployError
from strategies.protocol.files import STORES, expand
from strategies.protocol.names import check_name

Function = TypeVar("Function", bound=Callable[..., Any])


Site = Annotated[str, typer.Option(callback=lambda name: _name(name), help="The hospital's name.")]
StoreDir = Annotated[Path, typer.Option(help="The hospital's store.")]
RunConfig = Annotated[
    str | None, typer.Option(help="Settings of the run, such as \"strategy='cwt' image-size=64\".")
]
RunIdentity = Annotated[
    str | None, typer.Option(help="Identity of the run. Without it: the newest run.")
]
Keys = Annotated[
    Path | None, typer.Option(help="The hospital's keys. Without it: those in its store.")
]
Trusted = Annotated[
    Path | None,
    typer.Option(help="Trusted keys. Without it: hospital.toml's, or the keys seen first."),
]
SITE, STORE_DIR = "hospital", STORES
SURROGATES = re.compile(r"[^\s'\"]*[\ud800-\udfff][^\s'\"]*")  # bytes of a name that are not UTF-8


def output_option(text: str, *suffixes: str) -> Any:
    """An option with a file to write; `text` is its help.

    The file's name must have one of the ends: the option replaces no key and no image. Its folder
    must exist: else the command would fail only after its work.
    """

    def check(path: Path | None) -> Path | None:
        if path and path.suffix not in suffixes:
            ends = " or ".join(suffixes)
            raise typer.BadParameter(f"'{path}' does not end in {ends}: name such a file.")
        if path and not (folder := expand(path).parent).is_dir():
            raise typer.BadParameter(f"There is no folder '{folder}': make it, or name another.")
        return path

    return typer.Option(help=text, callback=check)


class Command(TyperCommand):
    """A command whose epilog is an example."""

    def __init__(self, *arguments: Any, callback: Callable[..., Any], **keywords: Any) -> None:
        super().__init__(*arguments, callback=callback, **keywords)
        # typer 0.20 loses the help of arguments with click 8.5.
        hints = get_type_hints(inspect.unwrap(callback), include_extras=True)
        for each in self.params:
            if isinstance(each, Argument):
                each.help = hints[str(each.name)].__metadata__[0].help
            if isinstance(each.type, ClickPath):  # who opens the file names it: it may be a default
                each.type.readable = False

    def format_arguments(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write nothing: typer writes arguments with the options."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Read the arguments, and the files that have defaults of options; as `invoke`."""
        given, *_ = self.make_parser(ctx).parse_args([*args])
        for each in self.params:
            if _has_blank(given.get(each.name)):  # an unset variable
                raise UsageError(f"{each.opts[0]} is empty: give a value, or leave it out.", ctx)
        with _in_one_line(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Context) -> Any:
        """Call the function of the command.

        Raises:
            UsageError: An argument or a file cannot be used; the text has the reason and the cure.
        """
        with _in_one_line(ctx):
            for each in self.params:
                if isinstance(each.type, ClickPath) and each.name:
                    ctx.params[each.name] = _expand(ctx.params[each.name])
            return super().invoke(ctx)

    def format_epilog(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the example, whose line is never broken."""
        formatter.write(f"\nExample:\n  {self.epilog}\n")


def command(app: typer.Typer, example: str) -> Callable[[Function], Function]:
    """Make a function a command, of the function's name; its docstring is the help."""

    def register(function: Function) -> Function:
        name = function.__name__.strip("_")
        return app.command(name, cls=Command, epilog=f"fedhandoff {example}")(function)

    return register


def private() -> None:
    """Let no other user of the machine read the files that this process makes."""
    os.umask(0o077)


@contextmanager
def _in_one_line(context: Context) -> Iterator[None]:
    """Make an error that a user can mend the text of a UsageError."""
    try:
        yield
    except (ValueError, OSError, DeployError) as error:
        raise UsageError(line_of(error), context) from error


def line_of(error: Exception) -> str:
    """The text of an error for a user of this machine, in one line."""
    if isinstance(error, UnicodeEncodeError) and (odd := SURROGATES.search(error.object)):
        return (
            f"{odd[0]!a} is not UTF-8: rename the file or folder. If its name is shown right "
            "elsewhere, set the locale: LC_ALL=C.UTF-8."
        )
    explain = getattr(error, "explain", None)  # with details that stay on this machine
    return re.sub(r"\[Errno \d+\] ", "", explain() if explain else str(error))


def _name(text: str) -> str:
    try:
        return check_name(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _has_blank(words: Any) -> bool:
    if isinstance(words, str):
        return not words.strip()
    return isinstance(words, list | tuple) and any(map(_has_blank, words))


def _expand(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_expand(each) for each in value]
    return value and expand(value)
