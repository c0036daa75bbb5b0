"""Many SuperNodes on one machine, and one SuperLink: the time of each phase, and the memory.

    uv run python -m benchmarks.many_supernodes --hospitals 10,30

As in deploy/demo: TLS, registered keys, sealed parcels, a database on disk, the digits. The demo's
three folders of images are dealt out to the hospitals in turn. Memory is the sum over all processes
of the server and the hospitals; pages that they share count once (PSS, so on Linux only). With
`--resident shared` all hospitals live in two processes (hospital_group.py), so that a hundred fit:
that says what the server does, not what a hospital needs.
"""

import argparse
import os
import tempfile
import time
from itertools import product
from pathlib import Path

from benchmarks.hospital_group import grouped
from benchmarks.many_hospitals import peak_memory, seconds_of_phases
from benchmarks.markdown import print_head, print_row, where
from benchmarks.overhead import events_of
from deploy.demo import HOSPITALS, hospitals, run, server, write_images
from deploy.server import hospitals_of

SETTINGS = (
    "strategy='rwt' model='mlp' num-server-rounds=3 train.epochs=1 evaluate.cross='sample:5' "
    "evaluate.ensemble=false seed=1 hop-timeout=1800 prepare-timeout=1800"
)
PROCESSES = 2  # of hospitals that share them
MARK = "XDG_DATA_HOME"  # environment variable by which the processes are found
LOOK = 5.0  # seconds between two looks at the memory: a look at a thousand processes costs one


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_supernodes")
    parser.add_argument("--hospitals", default="10,30,100", help="how many, by commas")
    about = "of the node-config, by commas; or shared: two processes for all hospitals"
    parser.add_argument("--resident", default="true,false", help=about)
    given = parser.parse_args()
    print(f"{where()}\n")
    print_head(
        *("hospitals", "resident", "start, s", "preparing, s", "first hop, s", "hop, s"),
        *("testing, s", "last testing, s", "GB waiting", "GB at most", "train answers"),
    )
    for number, resident in product(given.hospitals.split(","), given.resident.split(",")):
        with tempfile.TemporaryDirectory(prefix="fedhandoff-", dir="/tmp") as folder:
            os.environ[MARK] = folder
            print_row(number, resident, *measured(Path(folder), int(number), resident))


def measured(folder: Path, number: int, resident: str) -> list[str]:
    """The cells of a row: a server, `number` hospitals and a run, all below `folder`."""
    write_images(folder / "images")
    names = [f"hospital-{index:03}" for index in range(number)]
    for index, name in enumerate(names):
        (folder / "images" / name).symlink_to(HOSPITALS[index % len(HOSPITALS)])
    begin, more = time.monotonic(), ["--node-config", f"resident={resident}"]
    with (
        server(folder) as address,
        grouped(folder, address, names, PROCESSES)
        if resident == "shared"
        else hospitals(folder, address, more=more, names=names),
        peak_memory(str(folder), LOOK) as samples,
    ):
        while sum(status == "online" for _, status, _ in hospitals_of(folder / "server")) < number:
            time.sleep(LOOK)
        start, waiting = time.monotonic() - begin, samples[-1]
        result = run(folder, f"{SETTINGS} min-hospitals={number}")
    events = events_of(result)
    trained = [event["outcome"] == "ok" for event in events if event["verb"] == "train"]
    ready = max(event["time"] for event in events if event["verb"] == "query.prepare")
    seconds = (start, ready, *seconds_of_phases(result))
    return [
        *(f"{each:.0f}" for each in seconds),
        *(f"{each / 1e9:.1f}" for each in (waiting, max(samples))),
        f"{sum(trained)} of {3 * number}",
    ]


if __name__ == "__main__":
    main()
