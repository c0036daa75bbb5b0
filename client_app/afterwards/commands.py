"""A hospital's commands for the time after a run. The package cli names them."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from client_app.authority.identity import Identity
from client_app.authority.ledger import path_of, read
from client_app.authority.members import read_members
from client_app.authority.policy import Policy
from client_app.errors import DataError
from client_app.store import Store
from strategies.protocol.archive import ArchiveError
from strategies.protocol.files import replacing
from strategies.protocol.records import ParcelError
from strategies.protocol.run_config import changed_settings
from strategies.protocol.settings import SettingsError


def open_parcels(
    site: str,
    store_dir: Path,
    parcels: Sequence[Path],
    run_config: str,
    identity: Path | None,
    members: Path | None,
) -> bool:
    """Open parcels, and keep their models in the hospital's store.

    Args:
        site: The hospital's name.
        store_dir: The folder of its store.
        parcels: Files in the parcels/ of the run.
        run_config: Settings of the run.
        identity: The hospital's keys; None = those in its store.
        members: Trusted keys; None = those in its store.

    Returns:
        Whether all parcels were opened.

    Raises:
        SettingsError: A file is missing, or the settings cannot be used.
    """
    from client_app.afterwards.home import SIMULATED
    from client_app.afterwards.opening import take_home
    from learning.errors import ModelError

    store = store_dir / site
    own, trusted = identity or store / "identity", members or store / "members"
    for path in (own, trusted):
        if not path.is_file():  # `Identity.load` would make new keys, which open no parcel
            raise SettingsError(
                f"There is no file '{path}': name the hospital with --hospital. {SIMULATED}"
            )
    keys, known = Identity.load(site, own), read_members(trusted)
    settings, failed = changed_settings(run_config), 0
    for parcel in parcels:
        try:
            print(take_home(parcel, store, keys, known, settings))
        except (ArchiveError, ModelError, ParcelError, OSError) as error:
            print(f"Not opened: {parcel}. {error}", file=sys.stderr)
            failed += 1
    return not failed


def export(home: Path, model: str, to: Path, onnx: bool) -> Path:
    """Write a model, and its card in the same folder; returns the card.

    Raises:
        ModelError, OSError, SettingsError: The model or the file to write cannot be used.
    """
    from client_app.afterwards.home import find_model, load_file
    from learning.export import save_onnx
    from learning.model_card import write_card

    file = find_model(home, model)
    network, manifest = load_file(file)
    if onnx:
        save_onnx(to, network, manifest)
    else:
        shutil.copyfile(file, to)
    return write_card(to, manifest)


def predict(
    home: Path,
    models: Sequence[str],
    ensemble: bool,
    data: Path,
    output: Path,
    calibrate: Path | None,
) -> bool:
    """Write a table of predictions; name the images that cannot be used.

    Args:
        home: The hospital's folder in its store.
        models: Files, or names of models at home; none = the mixture of the newest run.
        ensemble: Whether all models in the folders of these models are averaged.
        data: A folder of images, a manifest, or an image.
        output: The table.
        calibrate: Labelled images of the hospital, which fit a temperature.

    Returns:
        Whether all images could be used.

    Raises:
        SettingsError: There is no such model, or no image.
    """
    from client_app.afterwards.home import SUFFIX, find_model, newest_run, read_mixture
    from client_app.afterwards.predicting import Predictor, write_predictions
    from client_app.datasets.unlabelled import list_images

    def show(done: int, total: int) -> None:
        if sys.stderr.isatty():
            print(f"{done} of {total} images", end="\r", file=sys.stderr, flush=True)

    if ensemble and not models:
        raise SettingsError("--ensemble averages a folder of models: name one with --model.")
    files = [find_model(home, name) for name in models]
    if ensemble:
        files = sorted({path for file in files for path in file.parent.glob(f"*{SUFFIX}")})
    weights = dict.fromkeys(files, 1.0) if files else read_mixture(newest_run(home))
    predictor = Predictor.load(weights)
    listing = list_images(data)
    if calibrate:
        predictor, images = predictor.calibrate(calibrate, home)
        print(f"Temperature {predictor.temperature:.3f}, fitted on {images} images.")
    done, unusable = write_predictions(predictor, listing, output, show)
    for each in unusable:
        print(f"Skipped {each}.", file=sys.stderr)
    names = ", ".join(
        f"{each.lineage} (round {each.round}{'' if files else f', weight {weight:.2f}'})"
        for each, weight in zip(predictor.manifests, predictor.weights, strict=True)
    )
    print(f"{done} images predicted, {len(unusable)} skipped, by {names}: {output}")
    return not unusable


def alone(
    site: str,
    store_dir: Path,
    run: str | None,
    data_dir: Path,
    run_config: str | None,
    policy: Path | None,
) -> None:
    """Train a model alone, and print the new mixture.

    Args:
        site: The hospital's name.
        store_dir: The folder of its store.
        run: Identity of the run; None = the newest run.
        data_dir: The hospital's labelled images of the run.
        run_config: Settings of the run; None = those in the ledger.
        policy: Policy of the run; None = the defaults.

    Raises:
        SettingsError: The policy is missing, or the settings cannot be used.
        PolicyError: The policy refuses the training.
    """
    from client_app.afterwards.alone import settings_of, train_alone
    from client_app.afterwards.past_run import PastRun

    past = PastRun.find(site, store_dir, run)
    settings = changed_settings(run_config) if run_config else settings_of(past)
    file = past.policy_file(policy)
    if past.policies and file is None:
        raise SettingsError("Give the policy of the run (--policy): it selected images.")
    rules = Policy.read(file) if file else None
    weights = train_alone(past, settings, data_dir, rules)
    parts = ", ".join(f"{weight:.2f} of '{name}'" for name, weight in weights.items())
    print(f"{past.alone_file}\nWithout --model, predict now uses {parts}.")


def report(
    site: str,
    store_dir: Path,
    run: str | None,
    to: Path,
    data_dir: Path | None,
    policy: Path | None,
) -> None:
    """Write a hospital's page on a run: performance of its models, and the records that left.

    Args:
        site: The hospital's name.
        store_dir: The folder of its store.
        run: Identity of the run; None = the newest run.
        to: The page.
        data_dir: The hospital's labelled images of the run, for exact figures.
        policy: Policy of the run; None = the defaults.
    """
    from client_app.afterwards.own_buffer import examine
    from client_app.afterwards.past_hospital import reopen_hospital
    from client_app.afterwards.past_run import PastRun
    from client_app.afterwards.report import page
    from client_app.afterwards.worth_here import (
        exact_assessments,
        open_details,
        released_assessments,
    )

    past = PastRun.find(site, store_dir, run)
    file = past.policy_file(policy)
    inexact, rows, examined = "", [], None
    if data_dir is None:
        inexact = "Exact figures need the hospital's images (--data-dir)."
    elif not past.models:
        inexact = "Exact figures need a model of the run, and none is at home."
    elif past.policies and file is None:
        inexact = "Exact figures need the policy of the run (--policy), which selected images."
    else:
        rules = Policy.read(file) if file else None
        try:
            hospital = reopen_hospital(past, data_dir, rules)
            details = open_details(past, hospital)
            rows = exact_assessments(past, details)
            made = past.buffer
            # At home the hospital has images, and no model for features.
            if made and not made.samples.pixels.is_floating_point():
                examined = examine(past, made, hospital, details)
        except DataError as error:
            inexact = f"Exact figures are not possible: {error}"
    rows = rows or released_assessments(past)
    with replacing(to) as draft:
        draft.touch(mode=0o600)
        draft.write_text(page(past, rows, inexact, file, examined), encoding="utf-8")
    if inexact:
        print(f"The figures are those that left the hospital. {inexact}", file=sys.stderr)
    print(to)


def dossier(
    site: str,
    store_dir: Path,
    file: Path | None,
    run: str | None,
    identity: Path | None,
    members: Path | None,
    crate: bool,
) -> bool:
    """Check the hospital's own dossier, or a dossier of another hospital.

    Args:
        site: The hospital's name.
        store_dir: The folder of its store.
        file: The dossier.json of another hospital; None = the hospital's own.
        run: Identity of the run; None = the newest run.
        identity: The hospital's keys; None = those in its store.
        members: Trusted keys; None = those in its store.
        crate: Whether to write a crate beside a valid dossier.

    Returns:
        Whether the dossier is valid.

    Raises:
        SettingsError: There is no such dossier.
        CrateError: The crate cannot be written, or is not of these files.
    """
    from client_app.release.dossier.crate import write_dossier_crate
    from client_app.release.dossier.files import check
    from client_app.run import dossiers, run_folder

    store = store_dir / site
    own, trusted = identity or store / "identity", members or store / "members"
    keys = read_members(trusted) if trusted.is_file() else {}
    if own.is_file():  # `Identity.load` would make new keys
        keys[site] = Identity.load(site, own).member
    path = file or _newest_dossier(store / "dossiers", run)
    checked = check(path, keys)
    print(path)
    print(f"Dossier of {checked.hospital!a}, run {checked.run!a}, SHA-256 {checked.hash}.")
    signed = "Signed by the known" if checked.signed else "NOT signed by a known"
    print(f"{signed} key of {checked.hospital!a}.")
    if not checked.page:
        print("dossier.html is missing, or does NOT match dossier.json.")
    if file:
        named = dossiers(run_folder(Store(store), checked.run)).get(checked.hospital)
        where = "the received buffer"
    else:
        named = _dossier_hash(path_of(site, store_dir), path.parent.name)
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
    if crate and holds:
        print(write_dossier_crate(path, checked))
    return holds


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
            f"There is no dossier{f' of the run {run}' if run else ''} in {folder}: name "
            "the hospital with --hospital. A run without synthetic images has none."
        )
    return max(found, key=lambda path: path.stat().st_mtime)
