"""Commands for simulated runs and their results."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from cli.command import STORE_DIR, StoreDir, command, output_option, private
from strategies.protocol.files import expand, write_whole

app = typer.Typer()
MOST_HOSPITALS = 10_000  # simulated on one machine
Settings = Annotated[
    list[str] | None,
    typer.Option("--run-config", help="As for flwr run: settings, or one file."),
]
SIMULATED = typer.Option(min=1, max=MOST_HOSPITALS, help="The number of simulated hospitals.")


@command(app, "run --run-config \"strategy='cwt' train.epochs=5\" --hospitals 4 --open")
def run(
    run_config: Settings = None,
    hospitals: Annotated[int, SIMULATED] = 2,
    open_: Annotated[
        bool, typer.Option("--open", help="Open the report in a browser at the end.")
    ] = False,
) -> None:
    """Check settings, simulate a run, and show its log.

    The last line is the address of the report. The exit status is 1 if the run fails. Ctrl-C ends
    the run; the setting `resume` continues it.
    """
    from server_app.launch import simulate

    report = simulate(run_config or [], hospitals)
    if open_:
        typer.launch(report)


@command(app, "check --run-config \"strategy='cwt' train.epochs=5\" --hospitals 4")
def check(
    run_config: Settings = None,
    hospitals: Annotated[int | None, SIMULATED] = None,
) -> None:
    """Check the settings of a run before it starts."""
    from server_app.check import check_texts

    check_texts(run_config or [], hospitals)


@command(app, "watch ~/fedhandoff/runs")
def watch(
    directory: Annotated[
        Path,
        typer.Argument(
            help="A result directory, which need not exist yet; or a folder of result "
            "directories, such as the setting output-dir: its current run, or the next one."
        ),
    ],
) -> int:
    """Follow a run until its end."""
    from server_app.watch import watch

    return watch(directory)


@command(app, "gain ~/images/graz ~/images/linz")
def gain(
    folders: Annotated[list[Path], typer.Argument(help="A folder or manifest per department.")],
    store_dir: StoreDir = STORE_DIR,
) -> None:
    """Compare sums of several departments with each department alone.

    Needs the extras timm and weights. Nothing leaves this machine.
    """
    from client_app.gain import describe_gains, measure_gains

    private()
    print(describe_gains(measure_gains(folders, store_dir)))


@command(app, "compare ~/fedhandoff/runs --csv table.csv --html table.html")
def compare(
    folders: Annotated[
        list[Path], typer.Argument(help="Result directories, or folders that contain some.")
    ],
    csv: Annotated[
        Path | None, output_option("Write all figures and differences to this file.", ".csv")
    ] = None,
    html: Annotated[
        Path | None, output_option("Write a page with pictures to this file.", ".html")
    ] = None,
) -> bool:
    """Compare methods over their runs.

    The comparison has figures, differences with intervals, and costs.
    """
    from server_app.compare import text, write_csv
    from server_app.comparison import compare

    comparison = compare(folders)
    print(text(comparison))
    if csv:
        write_csv(csv, comparison)
    if html:
        from server_app.compare_page import page

        write_whole(html, page(comparison))
    return not comparison.methods


@command(app, "crate ~/fedhandoff/runs/2026-11-21_14-03-59-cwt")
def crate(
    directory: Annotated[
        Path, typer.Argument(help="The result directory of a run that has ended.")
    ],
) -> None:
    """Write the RO-Crate of a run.

    The crate is a file in the directory; writing it needs the extra crate (docs/crate.md). If the
    file is there already, the files of the run are checked against it.
    """
    from server_app.crate import write_run_crate

    print(write_run_crate(directory))


@command(app, "reproduce --vary strategy=cwt,feder --vary train.epochs=1,3 --seeds 0,1,2")
def reproduce(
    context: typer.Context,
    table: Annotated[
        str | None,
        typer.Argument(help="The name of a table in benchmarks/, or your own TOML file."),
    ] = None,
    data: Annotated[
        str,
        typer.Option(
            help="The folder for {data} in the table's settings; for {images}, the folders or "
            "manifests of all hospitals, with commas."
        ),
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option(
            help="The folder for runs and table. Without it: ~/fedhandoff/benchmarks/<name>."
        ),
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(help="The names of some rows, with commas."),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Seeds instead of the table's, such as 0,1,2.")
    ] = None,
    hospitals: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_HOSPITALS,
            help="The number of hospitals, for rows without a number of their own.",
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,...",
            help="A setting with values: each row is run with each value; without a table, the "
            "default settings are run with each value.",
        ),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            min=0,
            max=1024,
            help="Warm processes in place of Flower's engine: the same figures, sooner.",
        ),
    ] = 0,
) -> bool:
    """Do the runs of a table, and print the table.

    Each row has a run for each seed (docs/comparing.md). A completed run is not done again, so an
    interrupted table goes on where it stopped.
    """
    # opacus installs a package of the same name, which would be found first.
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from benchmarks.reproduce import reproduce

    folders = [Path(os.path.realpath(expand(each))) for each in data.split(",") if each]
    try:
        numbers = [int(each) for each in seeds.split(",")] if seeds else None
    except ValueError as error:
        raise ValueError(f"--seeds is '{seeds}': give whole numbers, such as 0,1,2.") from error
    words = shlex.join(["uv", "run", "fedhandoff", *context.obj])
    return not reproduce(
        table, folders, output, rows, numbers, hospitals, vary or [], workers, words
    )


@command(app, "demo --asynchronous")
def demo(
    asynchronous: Annotated[
        bool,
        typer.Option("--asynchronous", help="Use queues instead of rounds; hospital wien is slow."),
    ] = False,
) -> None:
    """Do a short run of a server and three hospitals on this machine.

    All files are in a new temporary folder, and all processes are ended. It uses the commands of a
    real deployment, and prints the folder of the results last.
    """
    from deploy.demo import demonstrate

    demonstrate(asynchronous)
