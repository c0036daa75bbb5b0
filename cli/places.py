"""The options --hospital and --server: a folder whose file has the defaults of other options."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from click import Context, Parameter, UsageError
from click import Path as ClickPath

from strategies.protocol.files import expand

HERE = Path()
HOSPITAL, SERVER = "hospital.toml", "server.toml"
PATHS = ("store", "data", "policy", "members")  # keys of hospital.toml


class NameOrPath(ClickPath):
    """A bare name, or a path. A `Path` would not tell ./graz and graz/ from the bare name graz."""

    def convert(self, value: Any, param: Parameter | None, ctx: Context | None) -> Any:
        """The path; absolute if its text is more than a name."""
        path = expand(value)
        return path if value in (HERE, path.name) and value != ".." else path.absolute()


def _hospital_folder(context: typer.Context, chosen: Path) -> Path:
    """The hospital's folder; its hospital.toml gives the defaults of the other options."""
    from deploy.own_file import NODE_CONFIG, find_folder, read_own

    folder = find_folder(chosen, HOSPITAL)
    own = read_own(folder, HOSPITAL)
    needs_folder = " hospital " in context.command_path and context.info_name != "identity"
    if not own and (chosen != HERE or needs_folder):
        raise UsageError(
            f"There is no {folder / HOSPITAL}: name a hospital with --hospital, or make the file "
            "with `fedhandoff hospital join`.",
            context,
        )
    paths = {key: folder / expand(own[key]) for key in PATHS if key in own}
    config: dict[str, Any] = {key: own[key] for key in ("dataset", "model") if key in own}
    config |= own.get(NODE_CONFIG, {})
    if identity := config.get("identity"):
        config["identity"] = str(folder / expand(identity))
    defaults = {
        "site": own.get("name"),
        "store_dir": paths.get("store", folder / "store" if own else None),
        "data_dir": paths.get("data"),
        "policy": paths.get("policy"),
        "members": paths.get("members"),
        "dataset": config.get("dataset"),
        "identity": config.get("identity"),
        "server": own.get("server"),
        "runtime_port": own.get("runtime-port"),
        "own_config": config,
    }
    if (members := own.get("members")) in ("first-use", "none"):
        defaults["members"] = members if context.info_name == "start" else None
    context.default_map = {
        key: value if isinstance(value, int | dict) else str(value)
        for key, value in defaults.items()
        if value
    }
    return folder


def _consortium(context: typer.Context, chosen: Path) -> Path:
    """The server's folder; its server.toml gives the defaults of the other options."""
    from deploy.own_file import find_folder, read_own

    here = chosen == HERE and not (HERE / SERVER).is_file()
    folder = find_folder(Path("server") if here else chosen, SERVER)
    own = read_own(folder, SERVER)
    context.default_map = {key.replace("-", "_"): value for key, value in own.items()}
    return folder


def _folder_option(whose: str, find: Callable[[typer.Context, Path], Path], default: str) -> Any:
    return typer.Option(
        is_eager=True,
        click_type=NameOrPath(),
        callback=find,
        help=f"The {whose}: a name below ~/fedhandoff, or a folder. Its {whose}.toml has the "
        "defaults of the other options.",
        show_default=f"the folder that you are in{default}",
    )


Hospital = Annotated[Path, _folder_option("hospital", _hospital_folder, "")]
Server = Annotated[Path, _folder_option("server", _consortium, ", or ~/fedhandoff/server")]
