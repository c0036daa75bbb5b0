"""Apply models to a hospital's own images, and write a table of probabilities.

Shapes: `N` images, `C` channels, `H, W` pixels, `K` classes.
"""

import csv
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from client_app.afterwards.home import load_file
from client_app.afterwards.past_hospital import reopen_hospital
from client_app.afterwards.past_run import PastRun
from client_app.datasets.listing import Listing, Unusable, to_utf8
from client_app.datasets.resize import Form
from client_app.datasets.unlabelled import CHUNK, read_images
from client_app.errors import DataError
from learning.calibration import LOWEST, fit_temperature, temper
from learning.errors import ModelError
from learning.evaluation import probabilities
from learning.export import FORM, SPLIT, ModelManifest
from strategies.protocol.console import Pace
from strategies.protocol.files import replacing
from strategies.protocol.settings import Settings, defaults
from strategies.protocol.text import inert


@dataclass(frozen=True)
class Predictor:
    """One model, or a mixture of models for the same classes and form of images."""

    networks: Sequence[nn.Module]  # each maps uint8 [N, C, H, W] to logits [N, K]
    manifests: Sequence[ModelManifest]
    weights: Sequence[float]  # weight of each network; only proportions count
    # Above 1, predictions are less confident than those of the networks; below 1, more confident
    temperature: float = 1.0

    @classmethod
    def load(cls, files: Mapping[Path, float]) -> "Predictor":
        """Load models: file -> weight.

        Raises:
            ModelError: A model cannot be loaded, or models differ in classes or form of images.
        """
        device = "cuda" if torch.cuda.is_available() else "cpu"
        loaded = [load_file(file) for file in files]
        manifests = [manifest for _, manifest in loaded]
        first = manifests[0]
        for each in manifests:
            _check_same("classes", first.classes, each.classes)
            for side in ("channels", "height", "width"):
                _check_same(side, getattr(first.network, side), getattr(each.network, side))
            for key in FORM:
                _check_same(key, first.settings[key], each.settings[key])
        networks = [network.to(device) for network, _ in loaded]
        return cls(networks, manifests, [*files.values()])

    @property
    def classes(self) -> list[str]:
        """The names of the K classes."""
        return self.manifests[0].classes

    @property
    def settings(self) -> Settings:
        """The run's settings of images; other settings have their defaults.

        Raises:
            SettingsError: A setting is unknown here.
        """
        return Settings.parse({**defaults(), **self.manifests[0].settings})

    def probabilities(self, images: Tensor) -> Tensor:
        """Probabilities [N, K] of prepared images uint8 [N, C, H, W], on the CPU."""
        device = next(self.networks[0].parameters()).device
        each = [probabilities(network, images.to(device), math.inf) for network in self.networks]
        weights = torch.tensor(self.weights)[:, None, None]
        mean = (weights * torch.stack(each).cpu()).sum(dim=0) / sum(self.weights)
        return mean if self.temperature == 1.0 else temper(mean, self.temperature)

    def calibrate(self, folder: Path, home: Path, policy: Path | None) -> tuple["Predictor", int]:
        """Return a predictor with a temperature fitted to images, and the number of these images.

        It is fitted to the run's validation images (a validation-fraction or a fold). Without them
        it is fitted to the training images, on which a model is more confident than on new ones, so
        it is then at least 1.

        The images are in `folder`, as in the run; `home` is the hospital's own folder; `policy` is
        the policy of the run, None = the defaults.

        Raises:
            DataError: The images cannot be used, or are not those of the run.
            ModelError: The models are from runs with different test images.
            SettingsError: The hospital has no model of the run at home, or the policy is another.
        """
        for manifest in self.manifests:
            for key in SPLIT:
                _check_same(key, self.manifests[0].settings[key], manifest.settings[key])
        for run in dict.fromkeys(manifest.run for manifest in self.manifests):
            past = PastRun.find(home.name, home.parent, run)
            past.require_models()
            data = reopen_hospital(past, folder, past.rules(policy)).data
        settings = self.settings
        held_out = settings.validation_fraction > 0 or settings.num_folds > 0
        samples = data.test if held_out else data.train
        rows = torch.arange(len(samples)).split(CHUNK)
        scores = torch.cat([self.probabilities(samples[chunk].images) for chunk in rows])
        temperature = fit_temperature(scores, samples.labels.cpu(), LOWEST if held_out else 1.0)
        return replace(self, temperature=temperature), len(samples)


def write_predictions(
    predictor: Predictor, listing: Listing, output: Path
) -> tuple[int, list[Unusable]]:
    """Write a row for each image: its file, the most probable class, and all probabilities.

    Only the owner of `output`, a CSV file, can read it.

    Returns:
        The number of rows, and the unusable images with the reasons.

    Raises:
        SettingsError: The models' settings are unknown here.
        DataError: `output` is one of the images, or their manifest; or no image can be used.
        OSError: The table cannot be written.
    """
    entries, unusable, done = listing.entries, list(listing.unusable), 0
    source = listing.source
    read = (source, *(entry.file for entry in entries))
    if output.exists() and any(each.exists() and output.samefile(each) for each in read):
        raise DataError(f"'{output}' is an image, or the manifest: write the table elsewhere.")
    base = source if source.is_dir() else source.parent.resolve()
    sliced = any(entry.slice is not None for entry in entries)
    titles = ["image", *(["slice"] if sliced else []), "predicted"]
    titles += [f"probability of {name}" for name in predictor.classes]
    form, shape = Form.from_settings(predictor.settings), predictor.manifests[0].network.image_shape
    pace = Pace("predicting", "images")
    with replacing(output) as draft:
        draft.touch(mode=0o600)
        with draft.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(map(inert, titles))
            for usable, images, others in read_images(entries, form, shape):
                if usable:
                    scores = predictor.probabilities(images)
                    for entry, row in zip(usable, scores, strict=True):
                        if not row.isfinite().all():
                            reason = "gets numbers from the model that are not finite"
                            unusable.append(Unusable(entry.where, reason))
                            continue
                        done += 1
                        slices = [entry.slice] if sliced else []
                        predicted = predictor.classes[int(row.argmax())]
                        figures = [f"{value:.9g}" for value in row.tolist()]  # float32 exactly
                        path = to_utf8(os.path.relpath(entry.file, base))
                        line = [path, *slices, predicted, *figures]
                        writer.writerow(map(inert, line))
                unusable += others
                pace(done + len(unusable), len(entries) + len(listing.unusable))
        if not done:
            raise DataError(f"No image can be used. The first one: {unusable[0]}.")
    return done, unusable


def _check_same(what: str, first: object, other: object) -> None:
    if first != other:
        raise ModelError(
            f"The models cannot be used together: '{what}' is {first!r} for one and {other!r} for "
            "another. Name models of one run."
        )
