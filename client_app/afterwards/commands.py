"""The commands of `python -m client_app` for the time after a run."""

import argparse
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from client_app.authority.identity import Identity
from client_app.authority.ledger import path_of, read
from client_app.authority.members import read_members
from client_app.authority.policy import Policy, PolicyError
from client_app.errors import DataError
from client_app.store import Store
from strategies.protocol.archive import ArchiveError
from strategies.protocol.files import replacing
from strategies.protocol.records import ParcelError
from strategies.protocol.settings import Settings, SettingsError

Parse = Callable[[str | None], dict[str, object]]


def add_commands(commands: Any, hospital: argparse.ArgumentParser, run_config: Parse) -> None:
    """Add the commands to the subparsers; all share the options of `hospital` (`--site`, ...)."""
    add = commands.add_parser(
        "open", parents=[hospital], help="open parcels of a run that the hospital took part in"
    )
    add.set_defaults(command=open_parcels, parse=run_config)
    add.add_argument("parcels", type=Path, nargs="+", help="files in the run's parcels/")
    add.add_argument("--run-config", required=True, help="settings of the run: its config.toml")
    add.add_argument("--identity", type=Path, help="the hospital's keys; default: in its folder")
    add.add_argument("--members", type=Path, help="trusted keys; default: those first seen")

    add = commands.add_parser("export", parents=[hospital], help="write a model and its card")
    add.set_defaults(command=export)
    add.add_argument("model", help="a file, or the name of a model at home")
    add.add_argument("--to", type=Path, required=True, help="the file to write")
    add.add_argument("--onnx", action="store_true", help="write ONNX (needs the extra onnx)")

    add = commands.add_parser(
        "predict", parents=[hospital], help="apply models to images and write a table"
    )
    add.set_defaults(command=predict)
    add.add_argument(
        "--model",
        nargs="+",
        default=[],
        help="files, or names of models at home; several are averaged; default: the mixture of the "
        "newest run's models, fitted to the hospital's own test images",
    )
    add.add_argument(
        "--ensemble",
        action="store_true",
        help="average all models in the folder of the named model",
    )
    add.add_argument(
        "--data", type=Path, required=True, help="a folder of images, a manifest, or an image"
    )
    add.add_argument("--output", type=Path, required=True, help="the table to write (CSV)")
    add.add_argument(
        "--calibrate",
        type=Path,
        metavar="DATA_DIR",
        help="fit a temperature on the hospital's own labelled images (the same as in the run)",
    )

    add = commands.add_parser(
        "alone",
        parents=[hospital],
        help="train a model on the hospital's images alone, as long as in a run, and mix it in",
    )
    add.set_defaults(command=alone, parse=run_config)
    add.add_argument("--run", help="identity of the run; default: the newest run")
    add.add_argument(
        "--data-dir", type=Path, required=True, help="the hospital's labelled images of the run"
    )
    add.add_argument("--run-config", help="settings of the run; default: those in the ledger")
    add.add_argument("--policy", type=Path, help="policy of the run; default: the defaults")

    add = commands.add_parser(
        "report", parents=[hospital], help="write a page on a run, for the hospital alone"
    )
    add.set_defaults(command=report)
    add.add_argument("--run", help="identity of the run; default: the newest run")
    add.add_argument("--to", type=Path, required=True, help="the page to write (HTML)")
    add.add_argument(
        "--data-dir",
        type=Path,
        help="the hospital's labelled images of the run, for exact figures",
    )
    add.add_argument("--policy", type=Path, help="policy of the run; default: the defaults")

    add = commands.add_parser(
        "dossier", parents=[hospital], help="check the dossier of synthetic images that left"
    )
    add.set_defaults(command=dossier)
    add.add_argument("file", type=Path, nargs="?", help="another hospital's dossier.json")
    add.add_argument("--run", help="identity of the run; default: the newest run")
    add.add_argument("--identity", type=Path, help="the hospital's keys; default: in its folder")
    add.add_argument("--members", type=Path, help="trusted keys; default: those first seen")


def open_parcels(arguments: argparse.Namespace) -> int:
    """Open parcels, and keep their models in the hospital's store."""
    from client_app.afterwards.home import SIMULATED
    from client_app.afterwards.opening import take_home
    from learning.errors import ModelError

    store = arguments.store_dir / arguments.site
    paths = {name: getattr(arguments, name) or store / name for name in ("identity", "members")}
    for name, path in paths.items():
        if not path.is_file():  # `Identity.of` would make new keys, which open no parcel
            raise SettingsError(
                f"There is no file '{path}': give --site and --store-dir, or --{name}. {SIMULATED}"
            )
    identity = Identity.load(arguments.site, paths["identity"])
    members = read_members(paths["members"])
    settings = Settings.parse(arguments.parse(arguments.run_config))
    failed = 0
    for parcel in arguments.parcels:
        try:
            print(take_home(parcel, store, identity, members, settings))
        except (ArchiveError, ModelError, ParcelError, OSError) as error:
            print(f"Not opened: {parcel}. {error}", file=sys.stderr)
            failed += 1
    return int(failed > 0)


def export(arguments: argparse.Namespace) -> int:
    """Write a model, and its card in the same folder."""
    from client_app.afterwards.home import find_model, load_file
    from learning.export import save_onnx
    from learning.model_card import write_card

    file = find_model(arguments.store_dir / arguments.site, arguments.model)
    network, manifest = load_file(file)
    if arguments.onnx:
        save_onnx(arguments.to, network, manifest)
    else:
        shutil.copyfile(file, arguments.to)
    print(arguments.to)
    print(write_card(arguments.to, manifest))
    return 0


def predict(arguments: argparse.Namespace) -> int:
    """Write a table of predictions; name the images that cannot be used."""
    from client_app.afterwards.home import SUFFIX, find_model, newest_run, read_mixture
    from client_app.afterwards.predicting import Predictor, write_predictions
    from client_app.datasets.unlabelled import list_images

    def show(done: int, total: int) -> None:
        if sys.stderr.isatty():
            print(f"{done} of {total} images", end="\r", file=sys.stderr, flush=True)

    if arguments.ensemble and not arguments.model:
        raise SettingsError("--ensemble averages a folder of models: name one with --model.")
    home = arguments.store_dir / arguments.site
    files = [find_model(home, name) for name in arguments.model]
    if arguments.ensemble:
        files = sorted({path for file in files for path in file.parent.glob(f"*{SUFFIX}")})
    weights = dict.fromkeys(files, 1.0) if files else read_mixture(newest_run(home))
    predictor = Predictor.load(weights)
    listing = list_images(arguments.data)
    if arguments.calibrate:
        predictor, images = predictor.calibrate(arguments.calibrate, home)
        print(f"Temperature {predictor.temperature:.3f}, fitted on {images} images.")
    done, unusable = write_predictions(predictor, listing, arguments.output, show)
    for each in unusable:
        print(f"Skipped {each}.", file=sys.stderr)
    models = ", ".join(
        f"{each.lineage} (round {each.round}{'' if files else f', weight {weight:.2f}'})"
        for each, weight in zip(predictor.manifests, predictor.weights, strict=True)
    )
    print(f"{done} images predicted, {len(unusable)} skipped, by {models}: {arguments.output}")
    return int(bool(unusable))


def alone(arguments: argparse.Namespace) -> int:
    """Train a model alone, and print the new mixture."""
    from client_app.afterwards.alone import settings_of, train_alone
    from client_app.afterwards.past_run import PastRun

    past = PastRun.find(arguments.site, arguments.store_dir, arguments.run)
    config = arguments.run_config
    settings = Settings.parse(arguments.parse(config)) if config else settings_of(past)
    file = past.policy_file(arguments.policy)
    if past.policies and file is None:
        raise SettingsError("Give the policy of the run (--policy): it selected images.")
    rules = Policy.read(file) if file else None
    try:
        weights = train_alone(past, settings, arguments.data_dir, rules)
    except PolicyError as error:
        raise SettingsError(error.explain()) from error
    parts = ", ".join(f"{weight:.2f} of '{name}'" for name, weight in weights.items())
    print(f"{past.alone_file}\nWithout --model, predict now uses {parts}.")
    return 0


def report(arguments: argparse.Namespace) -> int:
    """Write a hospital's page on a run: performance of its models, and the records that left."""
    from client_app.afterwards.again import reopen_hospital
    from client_app.afterwards.own_buffer import examine
    from client_app.afterwards.past_run import PastRun
    from client_app.afterwards.report import page
    from client_app.afterwards.worth_here import (
        exact_assessments,
        open_details,
        released_assessments,
    )

    past = PastRun.find(arguments.site, arguments.store_dir, arguments.run)
    file = past.policy_file(arguments.policy)
    inexact, rows, examined = "", [], None
    if arguments.data_dir is None:
        inexact = "Exact figures need the hospital's images (--data-dir)."
    elif not past.models:
        inexact = "Exact figures need a model of the run, and none is at home."
    elif past.policies and file is None:
        inexact = "Exact figures need the policy of the run (--policy), which selected images."
    else:
        rules = Policy.read(file) if file else None
        try:
            hospital = reopen_hospital(past, arguments.data_dir, rules)
            details = open_details(past, hospital)
            rows = exact_assessments(past, details)
            examined = examine(past, past.buffer, hospital, details) if past.buffer else None
        except DataError as error:
            inexact = f"Exact figures are not possible: {error}"
    rows = rows or released_assessments(past)
    with replacing(arguments.to) as draft:
        draft.touch(mode=0o600)
        draft.write_text(page(past, rows, inexact, file, examined), encoding="utf-8")
    if inexact:
        print(f"The figures are those that left the hospital. {inexact}", file=sys.stderr)
    print(arguments.to)
    return 0


def dossier(arguments: argparse.Namespace) -> int:
    """Check the hospital's own dossier, or a dossier of another hospital."""
    from client_app.release.dossier.files import check
    from client_app.run import dossiers, run_folder

    store = arguments.store_dir / arguments.site
    identity = arguments.identity or store / "identity"
    members = arguments.members or store / "members"
    keys = read_members(members) if members.is_file() else {}
    if identity.is_file():  # `Identity.of` would make new keys
        keys[arguments.site] = Identity.load(arguments.site, identity).member
    path = arguments.file or _newest_dossier(store / "dossiers", arguments.run)
    checked = check(path, keys)
    print(path)
    print(f"Dossier of {checked.hospital!a}, run {checked.run!a}, SHA-256 {checked.hash}.")
    signed = "Signed by the known" if checked.signed else "NOT signed by a known"
    print(f"{signed} key of {checked.hospital!a}.")
    if not checked.page:
        print("dossier.html is missing, or does NOT match dossier.json.")
    if arguments.file:
        named = dossiers(run_folder(Store(store), checked.run)).get(checked.hospital)
        where = "the received buffer"
    else:
        named = _dossier_hash(path_of(arguments.site, store.parent), path.parent.name)
        where = "the ledger"
    match named:
        case None:
            print(f"For this run, {where} names no dossier.")
        case checked.hash:
            print(f"This is the dossier that {where} names.")
        case _:
            print(f"NOT the dossier that {where} names: its SHA-256 is {named}.")
    holds = checked.holds and named == checked.hash
    print("The dossier is valid." if holds else "The dossier is NOT valid.")
    return int(not holds)


def _dossier_hash(path: Path, run: str) -> str | None:
    """The hash of a run's last released dossier in the hospital's ledger; None if there is none."""
    last = None
    for line in read(path) if path.exists() else ():
        for record in line.entry.get("left", ()) if line.entry.get("run") == run else ():
            if record["name"] == "card":
                last = record.get("values", {}).get("dossier", last)
    return last


def _newest_dossier(folder: Path, run: str | None) -> Path:
    """The file of a run's dossier, or of the newest dossier, in a hospital's folder of dossiers."""
    found = [
        path for path in folder.glob("*/dossier.json") if run is None or path.parent.name == run
    ]
    if not found:
        raise SettingsError(
            f"There is no dossier{f' of the run {run}' if run else ''} in {folder}: give --site "
            "and --store-dir. A run without synthetic images has none."
        )
    return max(found, key=lambda path: path.stat().st_mtime)
