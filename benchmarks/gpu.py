"""Checks and times the code on CUDA in nine minutes; without a GPU, a small version on the CPU.

    uv run python -m benchmarks.gpu <folder>
    uv run python -m benchmarks.gpu --rows <folder>

The first command writes eight small files to the folder: a log of each step, a picture of the
images of each GAN, and gpu.json. The second prints them as Markdown, on any machine. Each step is a
process of its own with a time limit, so a failing or hanging step does not end the others, and its
rows up to then count. The exit status is 1 if a step fails.

The steps `paths` and `gan` need only torch, torchvision and scikit-learn; no step needs a network.
"""

import argparse
import copy
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import interpolate

from benchmarks.markdown import APP, commit, machine, print_head, print_row
from gan.adversaries import Adversaries, Examples, Privacy
from gan.presets import PRESETS, Preset
from gan.synthesis import balanced_labels, render, save_grid

LIMITS = {"paths": 90, "gan": 225, "feder": 165, "tests": 60}  # seconds; together nine minutes
SUMMARY = "gpu.json"
SHOWN = 20  # images in a picture


def main() -> None:
    """Run all steps, or one of them (in a process of its own), or print the rows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("folder", type=Path, help="the folder of the files")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--rows", action="store_true", help="print the results in the folder")
    which.add_argument("--step", choices=("paths", "gan"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = arguments.folder.expanduser().resolve()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if arguments.rows:
        print_rows(folder)
    elif arguments.step:
        rows = iter([paths(device)]) if arguments.step == "paths" else speeds(device, folder)
        for row in rows:
            print(json.dumps(row), flush=True)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the step under way, too
        folder.mkdir(parents=True, exist_ok=True)
        head = {"commit": commit(), "machine": machine(), "torch": torch.__version__}
        outcomes: dict[str, dict[str, Any]] = {}
        with TemporaryDirectory() as runs:  # runs and their store are large
            for name, words in steps(folder, Path(runs), device).items():
                outcomes[name] = attempt(words, folder / f"{name}.log", LIMITS[name])
                summary = {**head, "device": device.type, "steps": outcomes}
                (folder / SUMMARY).write_text(json.dumps(summary, indent=1))
        print_rows(folder)
        sys.exit(any(each["error"] for each in outcomes.values()))


def steps(folder: Path, runs: Path, device: torch.device) -> dict[str, list[str]]:
    """The command of each step; `folder` gets the figures, `runs` the runs with their store."""
    python, own = [sys.executable, "-m"], ["benchmarks.gpu", str(folder), "--step"]
    table = ["cli", "reproduce", "--workers", "2", "--seeds", "0", "--hospitals", "2"]
    table += ["--vary", "strategy=standalone,feder", "--vary", "num-server-rounds=2"]
    if device.type == "cpu":  # without GANs, which take minutes
        table += ["--vary", "feder.buffer-size=0"]
    return {
        "paths": [*python, *own, "paths"],
        "gan": [*python, *own, "gan"],
        "feder": [*python, *table, "--output", str(runs)],
        "tests": [*python, "pytest", "-q", "-n", "0", "-m", "gpu", "tests/test_gpu.py"],
    }


def attempt(command: list[str], log: Path, limit: float) -> dict[str, Any]:
    """Run a command; end all its processes after it, or at the limit.

    The command runs in the repository's folder. Its output goes to `log`. The limit is in seconds.

    Returns:
        Its `seconds`, and its `error`: None, or the reason of the failure.
    """
    began, error = time.perf_counter(), None
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=APP, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            if status := process.wait(limit):
                error = f"exit status {status}"
        except subprocess.TimeoutExpired:
            error = f"took longer than {limit:.0f} s"
        finally:  # also after Ctrl-C, which does not reach its group
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if error:
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        error = ": ".join([error, *last])
    return {"seconds": time.perf_counter() - began, "error": error}


def paths(device: torch.device) -> dict[str, Any]:
    """The CUDA features that the GAN's training uses, and their effects.

    Returns:
        bf16: Whether steps compute in bfloat16. bf16_error: Largest difference of its images from
        those in float32, over their largest value. channels_last: Whether all filters have this
        memory format. compiled: Whether networks are compiled. repeat_error: Largest difference of
        weights between two trainings with one seed; 0 = deterministic. peak_mib: Most memory on
        the GPU.

    Raises:
        RuntimeError: Weights or images are not finite, or filters on CUDA are not channels-last.
    """
    preset = PRESETS["tiny"]
    first, second = (train(device, preset, 20) for _ in range(2))
    weights, again = (
        torch.cat([p.flatten() for p in n.average.parameters()]) for n in (first, second)
    )
    styles = first.generator.map(first.labels[:32], torch.randn(32, preset.latent, device=device))
    styles = styles[:, None].repeat(1, first.generator.num_layers, 1)
    with torch.no_grad():
        # Copies have the same weights, and noise is drawn from the same seed.
        torch.manual_seed(0)
        exact = copy.deepcopy(first.generator).synthesise(styles)
        torch.manual_seed(0)
        with first.half:
            half = copy.deepcopy(first.generator).synthesise(styles)
    if not (weights.isfinite().all() and half.isfinite().all()):
        raise RuntimeError(f"Weights or images on {device} are not finite after 20 steps.")
    filters = [p for p in first.generator.parameters() if p.dim() == 4]
    last = all(p.is_contiguous(memory_format=torch.channels_last) for p in filters)
    if device.type == "cuda" and not last:
        raise RuntimeError("Filters of the generator on CUDA are not channels-last.")
    return {
        "bf16": first.half._enabled,
        "bf16_error": ((half - exact).abs().max() / exact.abs().max()).item(),
        "channels_last": last,
        "compiled": first.synthesise != first.generator.synthesise,
        "repeat_error": (weights - again).abs().max().item(),
        "peak_mib": peak(device),
    }


def speeds(device: torch.device, folder: Path) -> Iterator[dict[str, Any]]:
    """Train GANs of each size on digits; yields images per second and memory, and draws grids.

    skin-256 equals xray-256. On the CPU only tiny is trained, for a few seconds.
    """
    names, seconds = (
        (("tiny", "small", "xray-256"), 25.0) if device.type == "cuda" else (("tiny",), 10.0)
    )
    return (measure(name, PRESETS[name], device, folder, seconds) for name in names)


def measure(
    name: str, preset: Preset, device: torch.device, folder: Path, seconds: float
) -> dict[str, Any]:
    """Train one GAN for `seconds` after its first steps, which compile, and draw a grid."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    networks = train(device, preset, preset.r1_every + 1)
    synchronise(device)
    warm_up, began, count = time.perf_counter() - start, time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        networks.step(count, private=False)
        count += 1
        synchronise(device)
    rate = count * preset.batch_size / (time.perf_counter() - began)
    labels = balanced_labels(SHOWN, networks.labels.cpu())
    save_grid(folder / f"{name}.png", render(networks.average, labels, seed=0), 10)
    steps = {"preset": name, "steps": count, "images_per_second": rate}
    return {**steps, "warm_up_seconds": warm_up, "peak_mib": peak(device)}


def train(device: torch.device, preset: Preset, steps: int) -> Adversaries:
    """Networks after some steps on digits, without the privacy term, with a fixed seed."""
    torch.manual_seed(0)
    networks = Adversaries(
        digits(preset.resolution, device), preset, Privacy(0, "mean", torch.cdist)
    )
    for step in range(steps):
        networks.step(step, private=False)
    return networks


def digits(size: int, device: torch.device) -> Examples:
    """Sklearn's digits, uint8 [N, 1, size, size]."""
    data = load_digits()
    small = torch.from_numpy(data.images).float()[:, None] * 255 / 16
    images = interpolate(small, size=(size, size), mode="bilinear").round().to(torch.uint8)
    labels = torch.from_numpy(data.target).long()
    return Examples(images.to(device), labels.to(device), 10, "digits")


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def peak(device: torch.device) -> float | None:
    """Peak memory of tensors on the GPU, MiB; None on the CPU."""
    return torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else None


def print_rows(folder: Path) -> None:
    """Print the results in a folder, as in results/gpu.md; for a failed step its error."""
    summary = json.loads((folder / SUMMARY).read_text())
    print(f"Commit {summary['commit']}; {summary['machine']}; torch {summary['torch']}.\n")
    print_head("step", "s", "outcome")
    for name, outcome in summary["steps"].items():
        passing = "passed"
        if name == "tests" and not outcome["error"]:  # pytest passes too if it skips all tests
            passing = (folder / "tests.log").read_text().strip().splitlines()[-1]
        print_row(name, f"{outcome['seconds']:.0f}", outcome["error"] or passing)
    print()
    print_head("path", "")
    for row in read_rows(folder / "paths.log"):
        for name, value in row.items():
            print_row(name, f"{value:.3g}" if type(value) is float else value)
    print()
    print_head("preset", "steps", "images per s", "first steps, s", "MiB")
    for row in read_rows(folder / "gan.log"):
        figures = (row["images_per_second"], row["warm_up_seconds"], row["peak_mib"])
        print_row(
            row["preset"], row["steps"], *("–" if f is None else f"{f:,.0f}" for f in figures)
        )
    log = (folder / "feder.log").read_text().splitlines()
    print("\n" + "\n".join(line for line in log if line.startswith("|")))


def read_rows(log: Path) -> list[dict[str, Any]]:
    """The rows that a step has printed to its log, also before it failed."""
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]


if __name__ == "__main__":
    main()
