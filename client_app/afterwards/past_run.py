"""What a hospital's own folder knows of a run that the hospital took part in.

ledger.jsonl           what it was asked, and what left it; a simulation has none
runs/<run>/            what it remembers of the run
models/<run>/          the models that it has taken home (client_app.afterwards.home)
gan/*/*.npz            its synthetic images, with the figures of their check
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
from typing import Any, NamedTuple, NotRequired, TypedDict

import torch

from client_app.afterwards.home import MIXTURE, SIMULATED, SUFFIX, read_mixture
from client_app.authority.ledger import Line, path_of, read
from client_app.authority.ledger_index import BrokenLedger
from client_app.authority.policy import DEFAULTS
from client_app.release.model_attack import FILE
from client_app.run import run_folder
from client_app.store import Store
from learning.errors import ModelError
from learning.export import ModelManifest, read_manifest
from learning.intervals import Estimate
from learning.packing import pack_buffer
from learning.samples import Samples
from strategies.protocol.files import FileError, read_json, read_text
from strategies.protocol.parcel import hash_arrays
from strategies.protocol.records import ParcelError
from strategies.protocol.settings import SettingsError
from strategies.protocol.shapes import ShapeError, from_json

Figures = Mapping[str, float]


class _Success(TypedDict, total=False):
    auc: Estimate
    accuracy: Estimate


class _ByLoss(TypedDict):
    attack: _Success


# A line of `FILE`, as far as it is shown.
_Attacked = TypedDict(
    "_Attacked",
    {
        "lineage": str,
        "round": int,
        "leak": Estimate,
        "able": bool,
        "by-loss": _ByLoss,
        "by-network": NotRequired[_Success],
    },
)


class OwnBuffer(NamedTuple):
    """The hospital's synthetic images, their exact figures, and what attacks on them found."""

    samples: Samples
    figures: Figures
    attacked: Mapping[str, Any]


@dataclass(frozen=True)
class PastRun:
    """A run, as far as the hospital knows of it.

    Attributes:
        site: The hospital's name.
        folder: Its own folder.
        run: The run's identity.
        lines: Those of the ledger that are about the run.
        broken: Why the ledger's end cannot be believed; empty if its chain holds.
        others: The other runs in the folder, the newest first.
    """

    site: str
    folder: Path
    run: str
    lines: Sequence[Line]
    broken: str
    others: Sequence[str]

    @classmethod
    def find(cls, site: str, store: Path, run: str | None) -> "PastRun":
        """The newest run of a hospital, or the one that is named.

        Raises:
            SettingsError: There is no such hospital, or no such run.
        """
        folder = store / site
        if not folder.is_dir():
            raise SettingsError(f"There is no folder '{folder}': give --site and --store-dir.")
        lines, broken = _ledger(path_of(site, store))
        began = {
            each.name: each.stat().st_mtime
            for part in ("models", "runs")
            for each in folder.glob(f"{part}/*")
            if each.is_dir()
        }
        for line in reversed(lines):
            with suppress(ParcelError):  # a server may call a run what it likes
                name = run_folder(Store(folder), str(line.entry.get("run", ""))).folder.name
                began[name] = datetime.fromisoformat(line.entry["time"]).timestamp()
        runs = sorted(began, key=lambda name: began[name], reverse=True)
        if broken and not runs:
            raise SettingsError(f"{path_of(site, store)}: {broken}")
        if not runs:
            raise SettingsError(f"Hospital '{site}' has taken part in no run yet ({folder}).")
        if run is not None and run not in began:
            raise SettingsError(f"There is no run '{run}' in {folder}; it has {', '.join(runs)}.")
        chosen = runs[0] if run is None else run
        of_run = [line for line in lines if line.entry.get("run") == chosen]
        others = [name for name in runs if name != chosen]
        past = cls(site, folder, chosen, of_run, broken, others)
        if not (of_run or broken or past.files):
            raise SettingsError(f"Nothing of the run {chosen} is in {folder}. {SIMULATED}")
        return past

    @property
    def home(self) -> Path:
        """The folder of its models."""
        return self.folder / "models" / self.run

    @property
    def alone(self) -> Path:
        """Where the model lies, or would, that the hospital trained alone as long as the run's."""
        return self.home / "alone" / f"{self.site}{SUFFIX}"

    @cached_property
    def files(self) -> dict[str, Path]:
        """The models of the last round that are at home, by lineage."""
        return {path.stem: path for path in sorted(self.home.glob(f"*{SUFFIX}"))}

    @cached_property
    def models(self) -> dict[str, ModelManifest]:
        """What they are.

        Raises:
            ModelError: Names the file that is damaged.
        """
        found = {}
        for lineage, path in self.files.items():
            try:
                found[lineage] = read_manifest(path)
            except ModelError as error:
                raise ModelError(f"{path}: {error}") from error
        return found

    @property
    def visits(self) -> list[str]:
        """The models that are at home as visits of the hospital left them."""
        return sorted(path.stem for path in self.home.glob(f"visits/*{SUFFIX}"))

    @property
    def mixture(self) -> dict[str, float]:
        """How much to make of each model at home, by its place there; empty if it is not known.

        Raises:
            SettingsError: The file is damaged.
        """
        if not (self.home / MIXTURE).exists():
            return {}
        weights = read_mixture(self.home)
        places = {file: file.relative_to(self.home).with_suffix("") for file in weights}
        return {str(places[file]): weight for file, weight in weights.items()}

    @property
    def together(self) -> dict[str, float]:
        """What the hospital told of all models together.

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
        """Whether the hospital remembers the run; else it was asked, and did not take part."""
        return self.run in {path.name for path in self.folder.glob("runs/*")}

    @cached_property
    def answered(self) -> list[Line]:
        """The lines of messages that did not fail: what a server said in others was not checked."""
        return [line for line in self.lines if "left" in line.entry]

    @cached_property
    def terms(self) -> list[Mapping[str, Any]]:
        """Settings, code and policy under which the hospital answered, those of the end last.

        If it never did, those under which it was asked.
        """
        of = {line.entry["terms"]: line.entry for line in self.lines if "settings" in line.entry}
        used = [line.entry.get("terms") for line in self.answered or self.lines]
        return [of[each] for each in reversed(dict.fromkeys(reversed(used))) if each in of]

    @property
    def settings(self) -> dict[str, Any]:
        """The run's settings; empty if there is no ledger of it."""
        return dict(self.terms[-1]["settings"]) if self.terms else {}

    @property
    def own_settings(self) -> dict[str, str]:
        """Those that the hospital's node-config replaced; of files not by which."""
        pairs = (text.partition("=") for text in self.card.get("own-settings", ()))
        return {key: value for key, _, value in pairs}

    @property
    def policies(self) -> list[str]:
        """SHA-256 of the policies that held, that of the end last."""
        return list(dict.fromkeys(each["policy"] for each in self.terms))

    def policy_file(self, given: Path | None) -> Path | None:
        """The file with the policy that held to the end: the one given, or the default."""
        held = self.policies[-1:]
        for path in (given, DEFAULTS):
            if path and [hashlib.sha256(path.read_bytes()).hexdigest()] == held:
                return path
        return None

    @property
    def classes(self) -> list[str]:
        """Names of the classes; empty if nothing of the run says them."""
        labels = [self._left(line, "manifest") for line in self.lines]
        told = [label["classes"] for label in labels if "classes" in label]
        return next((each.classes for each in self.models.values()), told[-1] if told else [])

    def released_figures(self) -> dict[str, Figures]:
        """What the hospital told when it tested models for the last time, by what it is about."""
        found: dict[str, dict[str, float]] = {}
        last = -1
        for line in self.answered:
            if line.entry["verb"] != "evaluate":
                continue
            if line.entry.get("round", 0) > last:
                found, last = {}, line.entry.get("round", 0)
            for key, value in self._left(line, "metrics").items():
                about, slash, name = key.rpartition("/")
                if slash:
                    found.setdefault(about, {})[name] = float(value)
        if self.models:
            named = {name: found[name] for name in ("standalone",) if name in found}
            of_models = {k: each.tested.get(self.site, {}) for k, each in self.models.items()}
            return {**named, **of_models, **({"ensemble": self.together} if self.together else {})}
        return {**found}

    @property
    def buffer_figures(self) -> Figures:
        """What the hospital told of its synthetic images; empty if none left it."""
        for line in reversed(self.lines):
            if line.entry["verb"] == "query.prepare" and "release" in self._left(line, "card"):
                return self._left(line, "metrics")
        return {}

    @cached_property
    def buffer(self) -> OwnBuffer | None:
        """The synthetic images that left; None if they are not to be found.

        They are the set in the hospital's folder that has the hash of the one that left.
        """
        sent = {
            record["sha256"]
            for line in self.lines
            for record in line.entry.get("left", ())
            if record["name"] == "buffer"
        }
        store = Store(self.folder)
        for path in sorted(self.folder.glob("gan/*/*.npz")) if sent else ():
            try:
                kept = store.load(str(path.relative_to(self.folder).with_suffix("")))
                images, labels = (torch.from_numpy(kept[name]) for name in ("images", "labels"))
                samples = Samples(images, labels)
                if hash_arrays(pack_buffer(samples, str(self.card["dossier"]))) in sent:
                    figures = zip(kept["names"].tolist(), kept["values"].tolist(), strict=True)
                    return OwnBuffer(samples, dict(figures), json.loads(str(kept["attacked"])))
            except (OSError, ValueError, KeyError):
                continue  # a picture of training, or a damaged file
        return None

    @property
    def dossier(self) -> Path | None:
        """The page of the dossier of their release; None if there is none."""
        path = self.folder / "dossiers" / self.run / "dossier.html"
        return path if path.is_file() else None

    def attacked(self) -> list[_Attacked]:
        """What attacks found of the models that were trained here, the newest visit of each."""
        newest: dict[str, _Attacked] = {}
        with suppress(OSError, FileError):
            for line in read_text(self.folder / "runs" / self.run / FILE).splitlines():
                with suppress(ShapeError):  # half a line, after a crash
                    found = from_json(line, _Attacked)
                    newest[found["lineage"]] = found
        return [*newest.values()]

    @property
    def failures(self) -> Counter[tuple[str, str]]:
        """How often the hospital refused or failed to do something, by verb and reason."""
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
        """What the hospital said of itself."""
        return {k: v for line in self.lines for k, v in self._left(line, "card").items()}

    @staticmethod
    def _left(line: Line, name: str) -> dict[str, Any]:
        """The values of a record that left with an answer."""
        for record in line.entry.get("left", ()):
            if record["name"] == name:
                return dict(record.get("values", {}))
        return {}


def _ledger(path: Path) -> tuple[list[Line], str]:
    """The lines as far as the chain holds, and why it holds no further."""
    lines = []
    try:
        for line in read(path):
            lines.append(line)
    except FileNotFoundError:  # of a simulation
        return [], ""
    except BrokenLedger as error:
        return lines, str(error)
    return lines, ""
