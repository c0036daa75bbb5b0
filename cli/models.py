"""Commands for the models of a finished run (docs/using-a-model.md)."""

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
    private,
)
from cli.places import HERE, Hospital

app = typer.Typer()
Policy = Annotated[Path | None, typer.Option(help="Policy of the run. Without it: the defaults.")]


@command(app, "predict --hospital graz --data ~/new --output p.csv")
def predict(
    data: Annotated[Path, typer.Option(help="A folder of images, a manifest, or an image.")],
    output: Annotated[Path, typer.Option(help="The table to write (CSV).")],
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
    hospital: Hospital = HERE,
    site: Site = SITE,
    store_dir: StoreDir = STORE_DIR,
) -> bool:
    """Apply models to images, and write a table."""
    from client_app.afterwards.commands import predict

    private()
    return not predict(store_dir / site, model or [], ensemble, data, output, calibrate)


@command(app, "report --hospital graz --to report.html")
def report(
    to: Annotated[Path, typer.Option(help="The page to write (HTML).")],
    run: RunIdentity = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="The hospital's labelled images of the run, for exact figures."),
    ] = None,
    policy: Policy = None,
    hospital: Hospital = HERE,
    site: Site = SITE,
    store_dir: StoreDir = STORE_DIR,
) -> None:
    """Write a page on a run, for the hospital alone."""
    from client_app.afterwards.commands import report

    private()
    report(site, store_dir, run, to, data_dir, policy)


@command(app, "export graz --to model.safetensors --hospital graz")
def export(
    model: Annotated[
        str, typer.Argument(help="A file; or the name of a model, at home or of --result.")
    ],
    to: Annotated[Path, typer.Option(help="The file to write.")],
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Write ONNX (needs the extra onnx).")
    ] = False,
    result: Annotated[
        Path | None,
        typer.Option(help="Take the model from this result directory of an open run."),
    ] = None,
    hospital: Hospital = HERE,
    site: Site = SITE,
    store_dir: StoreDir = STORE_DIR,
) -> None:
    """Write a model as a file of its own, and its card."""
    from client_app.afterwards import commands
    from server_app.export import export

    if result:
        card = export(result, model, to, onnx)
    else:
        private()
        card = commands.export(store_dir / site, model, to, onnx)
    print(to)
    print(card)


@command(app, "alone --hospital graz")
def alone(
    data_dir: Annotated[Path, typer.Option(help="The hospital's labelled images of the run.")],
    run: RunIdentity = None,
    run_config: Annotated[
        str | None, typer.Option(help="Settings of the run. Without it: those in the ledger.")
    ] = None,
    policy: Policy = None,
    hospital: Hospital = HERE,
    site: Site = SITE,
    store_dir: StoreDir = STORE_DIR,
) -> None:
    """Train a model on the hospital's own images, for its mixture.

    The training takes as long as in the run.
    """
    from client_app.afterwards.commands import alone

    private()
    alone(site, store_dir, run, data_dir, run_config, policy)


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
    from client_app.afterwards.commands import open_parcels

    private()
    return not open_parcels(site, store_dir, parcels, run_config, identity, members)
