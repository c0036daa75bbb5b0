"""The files of a training: checkpoints to go on from after a kill, and the progress as text."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch

from gan.checks import Progress
from strategies.protocol.files import replacing


class Part(Protocol):
    """Something whose state goes into a checkpoint."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes, as plain numbers and tensors."""

    def load_state_dict(self, state: dict[str, Any], /) -> object:
        """Continue where another part was."""


class Checkpoints:
    """The folder of one training.

    Args:
        folder: Made if it is missing.
        made_with: What the training depends on, as text; that of another one is refused.
    """

    def __init__(self, folder: Path, made_with: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.made_with = folder, made_with

    def has(self, name: str) -> bool:
        """Whether `save` has written this name."""
        return (self.folder / f"{name}.pt").exists()

    def save(self, name: str, **parts: Part) -> None:
        """Write `<name>.pt`: the states of parts, and of torch's global generators."""
        cuda = torch.cuda.is_available()
        content = {
            "made-with": self.made_with,
            "parts": {part: each.state_dict() for part, each in parts.items()},
            "random": torch.get_rng_state(),
            "random-cuda": torch.cuda.get_rng_state_all() if cuda else [],
        }
        with replacing(self.folder / f"{name}.pt") as draft:
            torch.save(content, draft)

    def load(self, name: str, **parts: Part) -> None:
        """Bring parts, and torch's global generators, back to where they were at `save`.

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
        for part, each in parts.items():
            each.load_state_dict(content["parts"][part])
        torch.set_rng_state(content["random"])
        if content["random-cuda"]:
            torch.cuda.set_rng_state_all(content["random-cuda"])

    def write_progress(self, progress: Iterable[Progress]) -> None:
        """Write `progress.jsonl`: all checks, one line each."""
        lines = [json.dumps(asdict(each)) + "\n" for each in progress]
        with replacing(self.folder / "progress.jsonl") as draft:
            draft.write_text("".join(lines))
