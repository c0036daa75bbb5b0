"""What all commands have in common: an example, `~` in paths, and errors in one line."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from click import Context, HelpFormatter, UsageError
from click import Path as ClickPath
from typer.core import TyperCommand

from deploy.errors import DeployError
from strategies.protocol.files import STORES
from strategies.protocol.names import check_name

Function = TypeVar("Function", bound=Callable[..., Any])


def _own(context: typer.Context, chosen: Path) -> Path:
    """The hospital's folder; its hospital.toml gives the defaults of the other options."""
    from deploy.own_file import NODE_CONFIG, find_folder

    folder = find_folder(chosen, HOSPITAL)
    own = _read(context, folder, HOSPITAL)
    needs_folder = " hospital " in context.command_path and context.info_name != "identity"
    if not own and (chosen != HERE or needs_folder):
        raise UsageError(
            f"There is no {folder / HOSPITAL}: name a hospital with --hospital, or make the file "
            "with `fedhandoff hospital init`.",
            context,
        )
    paths = {key: folder / Path(own[key]).expanduser() for key in PATHS if key in own}
    config = {key: own[key] for key in ("dataset", "model") if key in own}
    config |= own.get(NODE_CONFIG, {})
    defaults = {
        "site": own.get("name"),
        "store_dir": paths.get("store", folder / "store" if own else None),
        "data_dir": paths.get("data"),
        "policy": paths.get("policy"),
        "members": paths.get("members"),
        "dataset": own.get("dataset"),
        "server": own.get("server"),
        "runtime_port": own.get("runtime-port"),
        "node_config": " ".join(f"{key}={json.dumps(value)}" for key, value in config.items()),
    }
    if (members := own.get("members")) in ("first-use", "none"):
        defaults["members"] = members if context.info_name == "start" else None
    context.default_map = {
        key: value if isinstance(value, int) else str(value)
        for key, value in defaults.items()
        if value
    }
    return folder


def _consortium(context: typer.Context, chosen: Path) -> Path:
    """The server's folder; its server.toml gives the defaults of the other options."""
    from deploy.own_file import find_folder

    here = chosen == HERE and not (HERE / SERVER).is_file()
    folder = find_folder(Path("server") if here else chosen, SERVER)
    own = _read(context, folder, SERVER)
    context.default_map = {key.replace("-", "_"): value for key, value in own.items()}
    return folder


def _read(context: typer.Context, folder: Path, file: str) -> dict[str, Any]:
    from deploy.own_file import read_own

    try:
        return read_own(folder, file)
    except DeployError as error:
        raise UsageError(str(error), context) from error


Hospital = Annotated[
    Path,
    typer.Option(
        is_eager=True,
        callback=_own,
        help="The hospital: a name below ~/fedhandoff, or a folder. Its hospital.toml has the "
        "defaults of the other options.",
        show_default="the folder that you are in",
    ),
]
Server = Annotated[
    Path,
    typer.Option(
        is_eager=True,
        callback=_consortium,
        help="The server: a name below ~/fedhandoff, or a folder. Its server.toml has the defaults "
        "of the other options.",
        show_default="the folder that you are in, or ~/fedhandoff/server",
    ),
]
Site = Annotated[str, typer.Option(callback=lambda name: _name(name), help="The hospital's name.")]
StoreDir = Annotated[Path, typer.Option(help="The hospital's store.")]
RunConfig = Annotated[
    str | None, typer.Option(help="Settings of the run, such as \"strategy='cwt' image-size=64\".")
]
SITE, STORE_DIR, HERE = "hospital", STORES, Path()
HOSPITAL, SERVER = "hospital.toml", "server.toml"
PATHS = ("store", "data", "policy", "members")  # keys of hospital.toml


class Command(TyperCommand):
    """A command whose epilog is an example."""

    def invoke(self, ctx: Context) -> Any:
        """Call the function of the command.

        Raises:
            UsageError: An argument or a file cannot be used; the text has the reason and the cure.
        """
        for each in self.params:
            if isinstance(each.type, ClickPath) and each.name:
                ctx.params[each.name] = _expanded(ctx.params[each.name])
        try:
            return super().invoke(ctx)
        except (ValueError, OSError, DeployError) as error:  # a user can mend these
            explain = getattr(error, "explain", None)  # has what the server may not learn
            raise UsageError(explain() if explain else str(error), ctx) from error

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


def _name(text: str) -> str:
    try:
        return check_name(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _expanded(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [*map(_expanded, value)]
    return value and os.path.expanduser(value)
