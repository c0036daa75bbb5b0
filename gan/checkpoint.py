"""The files of a training: checkpoints to go on from after a kill, and the progress as text."""

import json
from dataclasses import asdict
from pathlib import Path

import torch

from gan.adversaries import Adversaries
from gan.schedule import Progress, Standing
from strategies.protocol.files import replacing

VERSION = 2  # of networks and losses: a training of another version is not gone on with


class Checkpoints:
    """The folder of one training.

    Args:
        folder: Made if it is missing.
        made_with: What the training depends on, as text; that of another one is refused.
    """

    def __init__(self, folder: Path, made_with: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.made_with = folder, f"version {VERSION}, {made_with}"

    def has(self, name: str) -> bool:
        """Whether `save` has written this name."""
        return (self.folder / f"{name}.pt").exists()

    def save(self, name: str, networks: Adversaries, standing: Standing) -> None:
        """Write `<name>.pt`: both states, and those of torch's global generators.

        Before that it writes `progress.jsonl`: all checks, one line each.
        """
        lines = [json.dumps(asdict(each)) + "\n" for each in standing.progress]
        with replacing(self.folder / "progress.jsonl") as draft:
            draft.write_text("".join(lines))
        content = {
            "made-with": self.made_with,
            "networks": networks.state_dict(),
            "standing": asdict(standing),
            "random": torch.get_rng_state(),
            "random-cuda": torch.cuda.get_rng_state_all(),
        }
        with replacing(self.folder / f"{name}.pt") as draft:
            torch.save(content, draft)

    def load(self, name: str, networks: Adversaries) -> Standing:
        """Bring networks and torch's global generators back to where they were at `save`.

        Returns:
            Where the training stood then.

        Raises:
            ValueError: Another training wrote the file.
        """
        path = self.folder / f"{name}.pt"
        content = torch.load(path, map_location="cpu", weights_only=True)
        if content["made-with"] != self.made_with:
            raise ValueError(
                f"{self.folder} holds another training: {content['made-with']}. Choose another "
                f"folder for this one: {self.made_with}."
            )
        networks.load_state_dict(content["networks"])
        torch.set_rng_state(content["random"])
        torch.cuda.set_rng_state_all(content["random-cuda"])
        progress = [Progress(**each) for each in content["standing"].pop("progress")]
        return Standing(**content["standing"], progress=progress)
