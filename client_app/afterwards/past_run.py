"""A hospital's records of a past run, in its own folder.

ledger.jsonl           orders, and records that left the hospital; a simulation has no ledger
runs/<run>/            the hospital's memory of the run
models/<run>/          models at home (client_app.afterwards.home)
gan/*/*.npz            synthetic images, with the figures of their check
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import torch
from flwr.common.config import unflatten_dict

from client_app.afterwards.home import MIXTURE, SIMULATED, SUFFIX, place_of, read_mixture, started
from client_app.authority.ledger import Line, path_of, read_to_break
from client_app.authority.policy import DEFAULTS, Policy
from client_app.release.model_attack import FILE
from client_app.release.sums.own import FILE as SUMS
from client_app.run import run_folder
from client_app.store import Store
from learning.errors import ModelError
from learning.export import ModelManifest, read_manifest
from learning.intervals import Figure
from strategies.protocol.files import FileError, read_bytes, read_json, read_text
from strategies.protocol.records import ParcelError
from strategies.protocol.settings import SettingsError, defaults
from strategies.protocol.shapes import ShapeError, ShapeT, from_json

if TYPE_CHECKING:
    from client_app.release.buffer.job import Release


class _Success(TypedDict, total=False):
    auc: Figure
    accuracy: Figure


class _Contrast(TypedDict):
    attack: _Success


# The part of a line of `FILE` that the page shows.
_Attack = TypedDict(
    "_Attack",
    {
        "lineage": str,
        "round": int,
        "leak": Figure,
        "able": bool,
        "by-loss": _Contrast,
        "by-network": NotRequired[_Success],
    },
)


class _SentSums(TypedDict):
    task: int
    classes: int
    features: int
    epsilon: float
    limit: float
    difference: NotRequired[_Contrast]
    span: NotRequired[_Contrast]
    likelihood: NotRequired[_Contrast]


@dataclass(frozen=True)
class PastRun:
    """A past run in the records of a hospital."""

    site: str
    folder: Path  # the hospital's own folder
    run: str
    lines: Sequence[Line]  # lines of the ledger about the run
    fault: str  # reason why the chain of the ledger is broken; empty if it is intact
    other_runs: Sequence[str]  # other runs in the folder, the newest first

    @classmethod
    def find(cls, site: str, store: Path, run: str | None) -> "PastRun":
        """The named run of a hospital, or the newest run if `run` is None.

        Raises:
            SettingsError: There is no such hospital, or no such run.
        """
        folder = store / site
        if not folder.is_dir():
            raise SettingsError(
                f"There is no folder '{folder}': name the hospital with --hospital."
            )
        ledger = path_of(site, store)  # a simulation has none
        lines, fault = read_to_break(ledger) if ledger.exists() else ([], "")
        began = {
            each.name: started(folder, each.name)
            for part in ("models", "runs")
            for each in folder.glob(f"{part}/*")
            if each.is_dir()
        }
        for line in reversed(lines):
            with suppress(ParcelError):  # a server may give a run any name
                name = run_folder(Store(folder), str(line.entry.get("run", ""))).folder.name
                began[name] = datetime.fromisoformat(line.entry["time"]).timestamp()
        runs = sorted(began, key=lambda name: began[name], reverse=True)
        if fault and not runs:
            raise SettingsError(f"{ledger}: {fault}")
        if not runs:
            raise SettingsError(f"Hospital '{site}' has taken part in no run yet ({folder}).")
        if run is not None and run not in began:
            raise SettingsError(f"There is no run '{run}' in {folder}; it has {', '.join(runs)}.")
        chosen = runs[0] if run is None else run
        of_run = [line for line in lines if line.entry.get("run") == chosen]
        other_runs = [name for name in runs if name != chosen]
        past = cls(site, folder, chosen, of_run, fault, other_runs)
        if not (of_run or fault or past.files):
            raise SettingsError(f"The folder {folder} has no record of run {chosen}. {SIMULATED}")
        return past

    @property
    def home(self) -> Path:
        """The folder of the run's models at home."""
        return self.folder / "models" / self.run

    @cached_property
    def strategy(self) -> str:
        """The name of the run's method; empty if neither ledger nor a model at home has it."""
        of_models = [str(model.settings["strategy"]) for model in self.models.values()]
        return str(self.settings.get("strategy", of_models[0] if of_models else ""))

    @property
    def own_file(self) -> Path:
        """The path of the hospital's model before the first hand-off; it may not exist."""
        return self.home / "own" / f"{self.site}{SUFFIX}"

    @property
    def alone_file(self) -> Path:
        """The path of the hospital's model after equal training alone; it may not exist."""
        return self.home / "alone" / f"{self.site}{SUFFIX}"

    @cached_property
    def files(self) -> dict[str, Path]:
        """Lineage -> file of a model at home after the last round."""
        return {path.stem: path for path in sorted(self.home.glob(f"*{SUFFIX}"))}

    @cached_property
    def models(self) -> dict[str, ModelManifest]:
        """Lineage -> manifest of a model at home after the last round.

        Raises:
            ModelError: A file is damaged; the text names it.
        """
        found = {}
        for lineage, path in self.files.items():
            try:
                found[lineage] = read_manifest(path)
            except ModelError as error:
                raise ModelError(f"{path}: {error}") from error
        return found

    def require_models(self) -> None:
        """Refuse a run without a model at home.

        Raises:
            SettingsError: There is none.
        """
        if not self.models:
            raise SettingsError(f"No model of the run {self.run} is at home in {self.folder}.")

    @property
    def model(self) -> ModelManifest:
        """The manifest of the hospital's own lineage, or of another one if that is not at home."""
        return self.models.get(self.site, next(iter(self.models.values())))

    @property
    def visits(self) -> list[str]:
        """Names of the models at home after a visit here."""
        return sorted(path.stem for path in self.home.glob(f"visits/*{SUFFIX}"))

    @property
    def mixture(self) -> dict[str, float]:
        """Place of a model at home -> its weight in the mixture; empty if there is no mixture.

        Raises:
            SettingsError: The file is damaged.
        """
        if not (self.home / MIXTURE).exists():
            return {}
        weights = read_mixture(self.home)
        return {place_of(file, self.home): weight for file, weight in weights.items()}

    @property
    def ensemble(self) -> dict[str, float]:
        """The released figures of the models' mean; empty if there are none.

        Raises:
            SettingsError: The file is damaged.
        """
        path = self.home / "ensemble.json"
        if not path.exists():
            return {}
        try:
            return read_json(path, dict[str, dict[str, float]]).get(self.site, {})
        except FileError as error:
            raise SettingsError(f"{error} Move it away.") from error

    @property
    def is_here(self) -> bool:
        """Whether the hospital has a folder of the run; otherwise it did not take part."""
        return (self.folder / "runs" / self.run).exists()

    @cached_property
    def answers(self) -> list[Line]:
        """The lines of messages that did not fail; the content of others was not checked."""
        return [line for line in self.lines if "left" in line.entry]

    @cached_property
    def terms(self) -> list[Mapping[str, Any]]:
        """Settings, code and policy of the hospital's answers, the last at the end.

        If the hospital never answered, they are those of the orders.
        """
        known = {line.entry["terms"]: line.entry for line in self.lines if "settings" in line.entry}
        used = [line.entry.get("terms") for line in self.answers or self.lines]
        return [known[each] for each in reversed(dict.fromkeys(reversed(used))) if each in known]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the run; empty if the ledger has no record of it."""
        return dict(self.terms[-1]["settings"]) if self.terms else {}

    @property
    def tables(self) -> dict[str, Any]:
        """The settings as nested tables, without keys that are unknown here."""
        settings = self.settings
        return unflatten_dict({key: settings.get(key, each) for key, each in defaults().items()})

    @property
    def terms_fault(self) -> str:
        """Why a broken ledger does not show the terms of the run; empty if it does."""
        return "" if self.terms else self.fault

    @property
    def own_settings(self) -> dict[str, str]:
        """Settings that the hospital's node-config replaced; file settings have no file name."""
        pairs = (text.partition("=") for text in self.card.get("own-settings", ()))
        return {key: value for key, _, value in pairs}

    @property
    def policies(self) -> list[str]:
        """SHA-256 of the policies in force, the last at the end."""
        return list(dict.fromkeys(each["policy"] for each in self.terms))

    def policy_file(self, file: Path | None) -> Path | None:
        """This file or the default policy, whichever was in force at the end; else None."""
        for path in filter(None, (file, DEFAULTS)):
            if hashlib.sha256(read_bytes(path)).hexdigest() in self.policies[-1:]:
                return path
        return None

    def rules(self, file: Path | None) -> Policy | None:
        """The policy in force at the end, in this file or the default one; None = a simulation.

        Raises:
            SettingsError: Neither was in force, or a broken ledger does not show which one was.
            OwnError: The file cannot be read.
        """
        if self.terms_fault:
            raise SettingsError(f"The policy of the run {self.run} is unknown. {self.terms_fault}")
        chosen = self.policy_file(file)
        if self.policies and chosen is None:
            raise SettingsError("Give the policy of the run (--policy): it selected images.")
        return Policy.read(chosen) if chosen else None

    @property
    def classes(self) -> list[str]:
        """Names of the classes; empty if no record names them."""
        for model in self.models.values():
            return model.classes
        labels = [_values(line, "manifest") for line in self.lines]
        return next((label["classes"] for label in reversed(labels) if "classes" in label), [])

    def released_figures(self) -> dict[str, Mapping[str, float]]:
        """Subject -> figures that left the hospital at the last test of models."""
        found: dict[str, dict[str, float]] = {}
        last = -1
        for line in self.answers:
            if line.entry["verb"] != "evaluate":
                continue
            if line.entry.get("round", 0) > last:
                found, last = {}, line.entry.get("round", 0)
            for key, value in _values(line, "metrics").items():
                about, slash, name = key.rpartition("/")
                if slash:
                    found.setdefault(about, {})[name] = float(value)
        if not self.models:
            return {**found}
        own = {"standalone": found["standalone"]} if "standalone" in found else {}
        of_models = {k: each.tested.get(self.site, {}) for k, each in self.models.items()}
        return {**own, **of_models, **({"ensemble": self.ensemble} if self.ensemble else {})}

    @property
    def buffer_figures(self) -> Mapping[str, float]:
        """The released figures of the synthetic images; empty if none left."""
        for line in reversed(self.lines):
            if line.entry["verb"] == "query.prepare" and "release" in _values(line, "card"):
                return _values(line, "metrics")
        return {}

    @cached_property
    def buffer(self) -> "Release | None":
        """The synthetic images that left; None if they are not found.

        Their fingerprint is in the dossier, whose hash left on the card. (The hash of the buffer
        that left may be of sealed bytes.)
        """
        file = self.folder / "dossiers" / self.run / "dossier.json"
        content = read_bytes(file) if file.is_file() else b""
        if hashlib.sha256(content).hexdigest() != self.card.get("dossier"):
            return None
        from client_app.release.buffer.job import Release  # imports torchvision, and takes seconds

        left, store = json.loads(content)["fingerprints"]["buffer"], Store(self.folder)
        for path in sorted(self.folder.glob("gan/*/*.npz")):
            try:
                kept = store.load(str(path.relative_to(self.folder).with_suffix("")))
                release = Release.from_arrays(kept, torch.device("cpu"))
            except (OSError, ValueError, KeyError):
                continue  # a statistic of the sampler, or a damaged file
            if release.fingerprint == left:
                return release
        return None

    @property
    def dossier(self) -> Path | None:
        """The page of the dossier of the synthetic images; None if there is none."""
        path = self.folder / "dossiers" / self.run / "dossier.html"
        return path if path.is_file() else None

    def attacks(self) -> list[_Attack]:
        """Results of attacks on the models that trained here, from the newest visit of each."""
        attacks = self._read_lines(FILE, _Attack)
        return [*{each["lineage"]: each for each in attacks}.values()]

    def sent_sums(self) -> list[_SentSums]:
        """The sums of features of each task that left, with the attacks on them."""
        return self._read_lines(SUMS, _SentSums)

    def _read_lines(self, file: str, shape: type[ShapeT]) -> list[ShapeT]:
        """The lines of a file in the memory of the run; none if it cannot be read."""
        found = []
        with suppress(OSError, FileError):
            for line in read_text(self.folder / "runs" / self.run / file).splitlines():
                with suppress(ShapeError):  # half a line, after a crash
                    found.append(from_json(line, shape))
        return found

    @property
    def failures(self) -> Counter[tuple[str, str]]:
        """(verb, reason) -> number of refusals and failures at the hospital."""
        return Counter(
            (
                line.entry["verb"],
                f"{failure['class']}: {failure['reason']} {failure.get('rule', '')}",
            )
            for line in self.lines
            if (failure := line.entry.get("failure"))
        )

    @property
    def card(self) -> dict[str, Any]:
        """The card of the hospital, as it left."""
        return {k: v for line in self.lines for k, v in _values(line, "card").items()}


def _values(line: Line, name: str) -> dict[str, Any]:
    """The values of a record in an answer that left; empty if it has no such record."""
    for record in line.entry.get("left", ()):
        if record["name"] == name:
            return dict(record.get("values", {}))
    return {}
