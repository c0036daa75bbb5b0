"""Commands for the models of a finished run (docs/using-a-model.md)."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from cli.command import (
    SITE,
    STORE_DIR,
    Keys,
    RunIdentity,
    Site,
    StoreDir,
    Trusted,
    command,
    line_of,
    output_option,
    private,
)
from cli.places import HERE, Hospital
from strategies.protocol.text import amount

app = typer.Typer()
PolicyFile = Annotated[
    Path | None,
    typer.Option(help="Policy of the run. Without it: that of hospital.toml, or the defaults."),
]


@command(app, "predict --hospital graz --data ~/new --output p.csv")
def predict(
    data: Annotated[Path, typer.Option(help="A folder of images, a manifest, or an image.")],
    output: Annotated[Path, output_option("The table to write.", ".csv")],
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="A file, or the name of a model at home; several are averaged. Without it: the "
            "mixture of the newest run's models, fitted to the hospital's own test images."
        ),
    ] = None,
    ensemble: Annotated[
        bool,
        typer.Option("--ensemble", help="Average all models in the folder of the named model."),
    ] = False,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA_DIR",
            help="Fit a temperature on the hospital's own labelled images (the same as in the "
            "run).",
        ),
    ] = None,
    policy: PolicyFile = None,
    hospital: Hospital = HERE,
    site: Site = SITE,
    store_dir: StoreDir = STORE_DIR,
) -> bool:
    """Apply models to images, and write a table."""
    from client_app.afterwards.home import SUFFIX, find_model, newest_run, place_of, read_mixture
    from client_app.afterwards.predicting import Predictor, write_predictions
    from client_app.datasets.unlabelled import list_images

    private()
    if ensemble and not model:
        raise ValueError("--ensemble averages a folder of models: name one with --model.")
    home = store_dir / site
    files = [find_model(home, name).absolute() for name in model or ()]
    if ensemble:
        files = sorted({path for file in files for path in file.parent.glob(f"*{SUFFIX}")})
    newest = None if files else newest_run(home)
    weights = read_mixture(newest) if newest else dict.fromkeys(files, 1.0)
    predictor = Predictor.load(weights)
    listing = list_images(data)
    if calibrate:
        predictor, images = predictor.calibrate(calibrate, home, policy)
        print(f"Temperature {predictor.temperature:.3f}, fitted on {amount(images, 'image')}.")
    done, unusable = write_predictions(predictor, listing, output)
    for each in unusable:
        print(f"Skipped {each}.", file=sys.stderr)
    named = []
    for file, manifest in zip(weights, predictor.manifests, strict=True):
        weight = f", weight {weights[file]:.2f}" if newest else ""
        place = place_of(file, newest or file.parent.parent)
        named.append(f"{place} (round {manifest.round}{weight})")
    by = ", ".join(named)
    print(f"{amount(done, 'image')} predicted, {len(unusable)} skipped, by {by}: {output}")
    return bool(unusable)


@command(app, "report --hospital graz --to report.html")
def report(
    to: Annotated[Path, output_option("The page to write.", ".html")],
    run: RunIdentity = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="The hospital's labelled images of the run, for exact figures."),
    ] = None,
    policy: PolicyFile = None,
    hospital: Hospital = HERE,
    site: Site = SITE,
    store_dir: StoreDir = STORE_DIR,
) -> None:
    """Write a page on a run, for the hospital alone."""
    from client_app.afterwards.past_run import PastRun
    from client_app.afterwards.report import write_report

    private()
    inexact = write_report(PastRun.find(site, store_dir, run), to, data_dir, policy)
    if inexact:
        print(f"The figures are those that left the hospital. {inexact}", file=sys.stderr)
    print(to)


@command(app, "export graz --to model.safetensors --hospital graz")
def export(
    model: Annotated[
        str, typer.Argument(help="A file; or the name of a model, at home or of --result.")
    ],
    to: Annotated[
        Path,
        output_option("The file to write. ONNX needs the extra onnx.", ".safetensors", ".onnx"),
    ],
    result: Annotated[
        Path | None,
        typer.Option(help="Take the model from this result directory of an open run."),
    ] = None,
    hospital: Hospital = HERE,
    site: Site = SITE,
    store_dir: StoreDir = STORE_DIR,
) -> None:
    """Write a model as a file of its own, and its card."""
    from client_app.afterwards.home import export_model
    from server_app.export import export

    if result:
        card = export(result, model, to)
    else:
        private()
        card = export_model(store_dir / site, model, to)
    print(to)
    print(card)


@command(app, "alone --hospital graz")
def alone(
    data_dir: Annotated[Path, typer.Option(help="The hospital's labelled images of the run.")],
    run: RunIdentity = None,
    run_config: Annotated[
        str | None, typer.Option(help="Settings of the run. Without it: those in the ledger.")
    ] = None,
    policy: PolicyFile = None,
    hospital: Hospital = HERE,
    site: Site = SITE,
    store_dir: StoreDir = STORE_DIR,
) -> None:
    """Train a model on the hospital's own images, for its mixture.

    It is trained for as many rounds as the run has.
    """
    from client_app.afterwards.alone import settings_of, train_alone
    from client_app.afterwards.past_run import PastRun
    from strategies.registry import changed_settings

    private()
    past = PastRun.find(site, store_dir, run)
    settings = changed_settings(run_config) if run_config else settings_of(past)
    train_alone(past, settings, data_dir, past.rules(policy))
    parts = ", ".join(f"{weight:.2f} of '{name}'" for name, weight in past.mixture.items())
    print(f"{past.alone_file}\nWithout --model, predict now uses {parts}.")


@command(app, "open ~/parcels/*.npz --run-config ~/config.toml --hospital graz")
def open_(
    parcels: Annotated[list[Path], typer.Argument(help="Files in the run's parcels/.")],
    run_config: Annotated[str, typer.Option(help="Settings of the run: its config.toml.")],
    identity: Keys = None,
    members: Trusted = None,
    hospital: Hospital = HERE,
    site: Site = SITE,
    store_dir: StoreDir = STORE_DIR,
) -> bool:
    """Open parcels of a run that the hospital took part in."""
    from client_app.afterwards.home import SIMULATED
    from client_app.afterwards.opening import take_home
    from client_app.authority.identity import Identity
    from client_app.authority.members import read_members
    from strategies.registry import changed_settings

    private()
    store = store_dir / site
    own, trusted = identity or store / "identity", members or store / "members"
    for path in (own, trusted):
        if not path.is_file():  # `Identity.load` would make new keys, which open no parcel
            raise ValueError(
                f"There is no file '{path}': name the hospital with --hospital. {SIMULATED}"
            )
    keys, known = Identity.load(site, own), read_members(trusted)
    settings, failed = changed_settings(run_config), False
    for parcel in parcels:
        try:
            print(take_home(parcel, store, keys, known, settings))
        except (ValueError, OSError) as error:
            print(f"Not opened: {parcel}. {line_of(error)}", file=sys.stderr)
            failed = True
    return failed
