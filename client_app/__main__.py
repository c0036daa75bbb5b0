"""Commands for a hospital: `python -m client_app preflight --data-dir <folder>`."""

import argparse
import json
import sys
import tomllib
from dataclasses import asdict, replace
from pathlib import Path

import torch
from flwr.common.config import flatten_dict, parse_config_args

from client_app.datasets.own import LISTINGS, own_data
from client_app.preflight.card import examine
from client_app.preflight.page import page, text
from client_app.store import DEFAULT
from strategies.settings import Settings, SettingsError

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def main() -> None:
    """Look at a hospital's images, print what they are like, and write it into its store."""
    parser = argparse.ArgumentParser(prog="python -m client_app", description=__doc__)
    commands = parser.add_subparsers(required=True)
    preflight = commands.add_parser("preflight", help="look at a hospital's images before a run")
    preflight.add_argument("--data-dir", required=True, help="its folder, or manifest")
    preflight.add_argument("--dataset", choices=sorted(LISTINGS), help="default: what data-dir is")
    preflight.add_argument("--site", default="hospital", help="its name")
    preflight.add_argument("--store-dir", type=Path, default=DEFAULT, help="its own folder")
    preflight.add_argument("--run-config", help='settings of the run: "image-size=64 seed=1"')
    arguments = parser.parse_args()
    path = str(Path(arguments.data_dir).expanduser().absolute())
    dataset = f"{arguments.dataset}:{path}" if arguments.dataset else own_data(path)
    try:
        settings = replace(Settings.parse(_run_config(arguments.run_config)), dataset=dataset)
    except SettingsError as error:
        parser.error(str(error))
    torch.set_num_threads(settings.cpu_threads)

    def show(what: str, done: int, total: int) -> None:
        print(f"\r{what} images: {done} of {total}", end="", file=sys.stderr, flush=True)

    store = arguments.store_dir.expanduser()
    examined = examine(arguments.site, settings, store, show)
    print("\r" + " " * 60 + "\r", end="", file=sys.stderr)
    print(text(examined.card))
    folder = store / arguments.site / "preflight"
    folder.mkdir(parents=True, exist_ok=True)
    card = {"verdict": examined.card.verdict, **asdict(examined.card)}
    (folder / "card.json").write_text(json.dumps(card, indent=1), encoding="utf-8")
    (folder / "card.html").write_text(page(examined), encoding="utf-8")
    print(folder / "card.html")
    sys.exit(examined.card.verdict == "red")


def _run_config(text: str | None) -> dict[str, object]:
    """The settings in pyproject.toml, and what a `--run-config` changes of them.

    Raises:
        SettingsError: There is no setting of a name.
    """
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))
    defaults = flatten_dict(project["tool"]["flwr"]["app"]["config"])
    changes = parse_config_args([text] if text else None)
    if unknown := changes.keys() - defaults.keys():
        raise SettingsError(f"No setting is called {', '.join(sorted(unknown))}.")
    return {**defaults, **changes}


if __name__ == "__main__":
    main()
