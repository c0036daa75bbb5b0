"""benchmarks.gpu: its pieces on the CPU, and CUDA's paths where there is a GPU."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from benchmarks import gpu
from benchmarks.markdown import APP
from gan.presets import PRESETS


def test_a_step_that_fails_or_hangs_is_recorded(tmp_path):
    log = tmp_path / "log"
    assert gpu.attempt([sys.executable, "-c", ""], log, 60)["error"] is None
    failed = gpu.attempt([sys.executable, "-c", "raise SystemExit('no room')"], log, 60)
    assert failed["error"] == "exit status 1: no room"
    hung = gpu.attempt([sys.executable, "-c", "import time; time.sleep(60)"], log, 0.2)
    assert hung["error"] == "took longer than 0 s"


def test_ctrl_c_ends_the_step_under_way(tmp_path, monkeypatch):
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: process)
    monkeypatch.setattr(process, "wait", Mock(side_effect=[KeyboardInterrupt, 0]))
    with pytest.raises(KeyboardInterrupt):
        gpu.attempt([], tmp_path / "log", 60)
    monkeypatch.undo()
    assert process.wait(5) == -9


@pytest.mark.slow
def test_gans_are_measured_without_flower():
    """A borrowed machine has torch, torchvision and scikit-learn; it may lack the rest."""
    lacking = ["flwr", "ray", "torchmetrics", "torch_fidelity", "lpips", "opacus", "pydantic"]
    code = f"import sys; sys.modules.update(dict.fromkeys({lacking})); import benchmarks.gpu"
    subprocess.run([sys.executable, "-c", code], cwd=APP, check=True)


def test_each_step_is_a_program(tmp_path):
    """`python -m` of a module that only defines functions would pass, and do nothing."""
    for command in gpu.steps(tmp_path, tmp_path, torch.device("cuda")).values():
        assert command[1] == "-m"
        found = find_spec(command[2])
        assert found
        assert (
            find_spec(f"{command[2]}.__main__")
            if found.submodule_search_locations
            else ("__main__" in Path(str(found.origin)).read_text())
        )


@pytest.mark.slow
def test_a_gan_is_measured_and_drawn_and_failed_steps_have_rows(tmp_path, capsys):
    cpu = torch.device("cpu")
    row = gpu.measure("tiny", PRESETS["tiny"].fit(8), cpu, tmp_path, 0.1)
    assert row["steps"] > 0
    assert row["peak_mib"] is None
    assert (tmp_path / "tiny.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "gan.log").write_text(json.dumps({**row, "images_per_second": 1234.0}))
    for step in ("paths", "feder"):
        (tmp_path / f"{step}.log").write_text("no room")
    outcomes = {"paths": {"seconds": 1, "error": "no room"}, "gan": {"seconds": 2, "error": None}}
    summary = {"commit": "c", "machine": "m", "torch": "2", "steps": outcomes}
    (tmp_path / gpu.SUMMARY).write_text(json.dumps(summary))
    gpu.print_rows(tmp_path)
    printed = capsys.readouterr().out
    assert "| paths | 1 | no room |" in printed
    assert "| 1,234 |" in printed


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_gan_training_on_cuda_is_near_float32():
    found = gpu.paths(torch.device("cuda"))
    assert found["bf16"] == torch.cuda.is_bf16_supported(including_emulation=False)
    assert found["bf16_error"] < 0.1
