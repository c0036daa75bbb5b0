"""The files of a training: checkpoints, from which a killed training continues, and progress."""

import json
import secrets
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from gan.adversaries import Adversaries
from gan.schedule import Check, Standing

VERSION = 4  # of networks, losses and checks; a new version is a new training


class Checkpoints:
    """The folder of one training, made if it is missing.

    The name of the folder follows from all inputs; `first_phase` are those of phase 1, as text.
    """

    def __init__(self, folder: Path, first_phase: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.first_phase = folder, f"version {VERSION}, {first_phase}"

    def borrow(self, others: Iterable[Path]) -> None:
        """Copy phase 1 from a training that differs only in its privacy term, if there is one."""
        for folder in sorted(others):
            if (folder / "checkpoint.pt").exists():
                content = _read(folder / "checkpoint.pt")
                standing = content["standing"]
                if content.get("first-phase") == self.first_phase and standing["phase"] > 1:
                    plain = _read(folder / "plain.pt")
                    write_whole(self.folder / "plain.pt", plain)
                    first = [each for each in standing["progress"] if each["phase"] == 1]
                    begun = asdict(Standing(2, 0, first[-1]["seconds"])) | {"progress": first}
                    write_whole(self.folder / "checkpoint.pt", {**plain, "standing": begun})
                    return

    def has(self, name: str) -> bool:
        """Whether `save` has written a file of this name."""
        return (self.folder / f"{name}.pt").exists()

    def save(self, name: str, networks: Adversaries, standing: Standing) -> None:
        """Write `<name>.pt`: both states, and those of torch's global generators.

        Before that, write `progress.jsonl`: one line for each check.
        """
        lines = [json.dumps(asdict(each)) + "\n" for each in standing.progress]
        (self.folder / "progress.jsonl").write_text("".join(lines))
        content = {
            "first-phase": self.first_phase,
            "networks": networks.state_dict(),
            "standing": asdict(standing),
            "random": torch.get_rng_state(),
            "random-cuda": torch.cuda.get_rng_state_all(),
        }
        write_whole(self.folder / f"{name}.pt", content)

    def load(self, name: str, networks: Adversaries) -> Standing:
        """Restore networks and torch's generators from a file of `save`; returns the standing."""
        content = _read(self.folder / f"{name}.pt")
        networks.load_state_dict(content["networks"])
        torch.set_rng_state(content["random"])
        torch.cuda.set_rng_state_all(content["random-cuda"])
        progress = [Check(**each) for each in content["standing"]["progress"]]
        return Standing(**{**content["standing"], "progress": progress})


def write_whole(path: Path, content: dict[str, Any]) -> None:
    """Write a file of tensors that is complete or missing, also if the process is killed."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        torch.save(content, draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return content
