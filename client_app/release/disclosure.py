"""The figures of a hospital: how good a model is, with too little detail to single out a patient.

Whoever sends a model asks a question: a model can be made so that its accuracy depends on one pixel
of one image. Hence, in a deployment (a simulation has one owner, and its figures are exact):

- Figures are about classes with test images of `figures.smallest-group` patients or more; other
  test images take no part in any.
- A figure has noise and is rounded. Let s be the most that one patient can change it by (1/n for
  the accuracy of n patients with one image each), and M the models that may be tested
  (`figures.max-models`). The noise is normal, with the standard deviation

      step = max( sqrt(s) / 2,  s sqrt(M) / TOLD )

  and what leaves is a multiple of the step in [0, 1]. The first term is 1 / (2 sqrt(n)), the
  largest standard error of a share of n patients: their number resolves no more. By the second
  term M models, however they are made, tell two cases of one patient apart by TOLD standard
  deviations in all, in each figure. A figure with a step above COARSEST does not leave.
- The noise follows from the model, the images and a secret of the hospital. The same question
  always has the same answer.
- Models are counted, over restarts too, in each run and in each day (client_app.run.Tested).
- Numbers of images are about such classes, too, and are rounded to whole groups. So that steps do
  not tell them, s is rounded up to a power of sqrt(2).
- Where images arrive in tasks, the server chooses the tasks. So a class counts as another one in
  each task wherever a rule asks how many patients have it. Numbers of images are sums of rounded
  ones. The accuracies of all tasks together tell of a patient what the accuracy alone would.
- A training loss is such a figure, too. It is the mean loss of at most IMAGES training images, each
  cut at WORST times the loss of guessing.
- So are prototypes, class means of features. Each patient counts once in a class, and a patient's
  part is no longer than the features of random pixels are. In these lengths, s is the most that one
  patient moves the means of all classes together.
- A figure of a buffer leaves if it is about enough patients; a smallest distance is about one. For
  n patients s is 1/n, and M is `figures.max-detailed`. Noise and steps of distances are relative.
- Figures after the last round, such as counts for each class, are in details.py.

A dither of one step's width is not enough. A figure at a multiple of the step, such as 0, gets no
noise from it, so a few models show whether a patient is there.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from client_app.authority.identity import secret_of
from client_app.authority.policy import FigureRules, PolicyError
from client_app.datasets.pool import Indices, large_class_rows
from client_app.release.noise import COARSEST, Noise, effects, effects_of_tasks, step_of
from client_app.request import Inquiry, log_once
from client_app.run import Tested, check_newest
from learning.errors import DivergedError
from learning.evaluation import count_right, probabilities, score
from learning.judgement import random_samples
from learning.learners.prototypes import extract_features
from learning.models.rotation import RotationNetwork
from strategies.protocol.may_leave import METRICS, SHARE, metric_of
from strategies.protocol.parcel import Manifest
from strategies.protocol.records import ParcelError
from strategies.protocol.settings import rng_for

IMAGES = 1000  # of the training images, about which models are asked
WORST = 2.0  # the largest loss of an image that counts, in times of guessing
TESTED = ("accuracy", "balanced-accuracy", "auroc")  # their noise is told beside them


def open_disclosure(request: Inquiry) -> "Disclosure":
    """The figures that a hospital's policy allows; exact ones without a policy, in a simulation."""
    policy = request.hospital.policy
    return Noised(request, policy.figures) if policy else Exact(request)


class Disclosure(ABC):
    """The figures of a hospital, in answer to one request.

    Args:
        request: Its hospital has the images.

    Attributes:
        smallest: The fewest patients of a class that figures are about.
        most: The models that may be tested; None = any number.
        chosen: The test images that figures are about, rows [n].
        labels: Their classes [n].
        patients: Whose they are [n].
        strata: Their classes, each as another one in each task [n].
        tasks: Their tasks [n]; None without tasks.
        learnt: The training images of classes of enough patients, rows [m].
    """

    smallest = 1
    most: int | None = None

    def __init__(self, request: Inquiry) -> None:
        self.request, self.data = request, request.hospital.data
        strata, patients = self.data.test_strata, self.data.test_patients
        chosen = large_class_rows(patients, strata, self.smallest)
        self.chosen = torch.from_numpy(chosen)
        self.labels = self.data.test.labels[self.chosen]
        self.patients, self.strata = patients[chosen], strata[chosen]
        self.tasks = None if self.data.test_tasks is None else self.data.test_tasks[chosen]
        self.owners = self.data.train_patients
        self.learnt = large_class_rows(self.owners, self.data.train_strata, self.smallest)

    def fingerprint(self, network: nn.Module, label: Manifest) -> str:
        """A hash of a model with the layers that stay here; empty if nothing uses it.

        The server chooses which images are asked about, by tasks for instance. The same model on
        other images is another question: it is counted, and has other noise.

        Args:
            network: The model.
            label: Of its parcel.
        """
        data = self.data
        asked = f"{data.test_fingerprint} {data.train_fingerprint} {label.architecture}"
        asked += f" {self.request.order.so_far}"  # which classes are answers
        digest = hashlib.sha256(asked.encode())
        for name, tensor in network.state_dict().items():
            digest.update(name.encode())
            digest.update(tensor.cpu().numpy().tobytes())
        return digest.hexdigest()

    @property
    def num_test(self) -> int:
        """The number of test images that figures are about."""
        return len(self.labels)

    def counts(self) -> dict[str, float]:
        """How many images the hospital trains on, tests on, and cannot use."""
        return {
            "num-train": self.number(self.data.train_strata[self.learnt]),
            "num-test": self.number(self.strata),
            "num-quarantined": self.rounded(self.data.quarantined),
        }

    def rounded(self, count: float) -> float:
        """A number of images or patients, to whole groups of `smallest`."""
        return float(self.smallest * math.floor(count / self.smallest + 0.5))

    def number(self, strata: Indices) -> float:
        """The rounded number of some images; strata [n] are the class within the task of each.

        Without tasks the number is rounded. With tasks the number of each stratum is rounded, so
        that no choice of tasks tells more.
        """
        if self.tasks is None:
            return self.rounded(len(strata))
        return sum(map(self.rounded, np.unique(strata, return_counts=True)[1].tolist()), 0.0)

    def admit(self, model: str, label: Manifest | None = None) -> None:
        """Refuse to test a model, or count it.

        Args:
            model: Its fingerprint.
            label: Of its parcel; None if the model has changed since it arrived. Without seals
                the server can write any label.

        Raises:
            PolicyError: `figures.max-models` models were tested before.
            ParcelError: Its lineage is no member's. Or another model with its label, or a newer
                one of its lineage, was tested already.
        """
        place, seal = "", self.request.seal
        if seal and label:
            if label.lineage not in seal.members:
                raise ParcelError(f"No member is called '{label.lineage:.80}', as a lineage is.")
            check_newest(self.request.run, label, tested=True)
            tasks = self.request.order.so_far  # which decide on the images it is tested on
            place = fingerprint([label.lineage, label.round, label.hop, label.epochs, tasks])
        if place or self.most is not None:
            Tested(self.request.run).add(model, place, self.most)

    @abstractmethod
    def weight(self, images: float) -> float:
        """The weight of a visit's model in an average, from the visit's number of images."""

    @abstractmethod
    def test_figures(
        self, model: str, scores: Tensor, *, per_class: bool = False
    ) -> dict[str, float]:
        """The figures of a model.

        Args:
            model: Its fingerprint.
            scores: Of all test images, [n, K].
            per_class: Whether also for each class.

        Returns:
            By name; nothing if there is no image to test on.

        Raises:
            DivergedError: A score is not finite, in a simulation. In a deployment the error would
                tell of the image with that score.
        """

    @property
    @abstractmethod
    def asked(self) -> Indices:
        """The training images about which models are asked: the same ones for all runs."""

    @abstractmethod
    def buffer_figures(self, figures: Mapping[str, float]) -> dict[str, float]:
        """The figures of a buffer that may leave."""

    @abstractmethod
    def embedding_figures(self, figures: Mapping[str, float], rows: Indices) -> dict[str, float]:
        """The figures of embeddings of the training images `rows` that may leave.

        A figure that was not measured, or has no bound, stays.
        """

    def _score(self, scores: Tensor) -> tuple[Tensor, dict[str, float]]:
        """Scores [n, K] of answers that are possible now, and their figures, exact."""
        scores = self._mask_future_classes(scores)
        return scores, score(scores, self.labels) | self._task_accuracies(scores)

    def _mask_future_classes(self, scores: Tensor) -> Tensor:
        """Scores [n, K] in which a class that has not arrived yet cannot be the answer."""
        tasks = self.request.order.so_far
        if self.data.output_tasks is None or not tasks:
            return scores
        here = np.isin(self.data.output_tasks, tasks)
        scores = scores * torch.from_numpy(here).to(scores.device)
        return scores / scores.sum(dim=1, keepdim=True).clamp_min(torch.finfo(scores.dtype).tiny)

    def _task_accuracies(self, scores: Tensor) -> dict[str, float]:
        """The accuracies of each task, from the scores [n, K]; none without tasks.

        An accuracy in a task chooses among its classes alone (Task-IL, arXiv:1904.07734).
        """
        if self.tasks is None:
            return {}
        found, outputs = {}, self.data.output_tasks
        for task in np.unique(self.tasks).tolist():
            here = torch.from_numpy(self.tasks == task).to(scores.device)
            own, labels = scores[here], self.labels[here]
            found[f"accuracy-of-task-{task}"] = (own.argmax(dim=1) == labels).double().mean().item()
            if outputs is not None:
                others = torch.from_numpy(outputs != task).to(scores.device)
                right = own.masked_fill(others, -1).argmax(dim=1) == labels
                found[f"accuracy-in-task-{task}"] = right.double().mean().item()
        return found


class Exact(Disclosure):
    """A simulation has one owner: figures are exact, and about all images."""

    def fingerprint(self, network: nn.Module, label: Manifest) -> str:
        """See the base; models are counted under a seal alone."""
        return super().fingerprint(network, label) if self.request.seal else ""

    def weight(self, images: float) -> float:
        """The number of images."""
        return images

    def test_figures(
        self, model: str, scores: Tensor, *, per_class: bool = False
    ) -> dict[str, float]:
        """See the base."""
        if not self.num_test:
            return {}
        if not scores.isfinite().all():
            raise DivergedError("The outputs of the model are not finite.")
        scores, exact = self._score(scores)
        return exact | (count_right(scores, self.labels) if per_class else {})

    @property
    def asked(self) -> Indices:
        """See the base."""
        drawn = rng_for(self.request.hospital.settings.seed, "operating point")
        return np.sort(drawn.permutation(len(self.data.train))[:IMAGES])

    def buffer_figures(self, figures: Mapping[str, float]) -> dict[str, float]:
        """All of them."""
        return dict(figures)

    def embedding_figures(self, figures: Mapping[str, float], rows: Indices) -> dict[str, float]:
        """All that were measured."""
        return {name: figure for name, figure in figures.items() if math.isfinite(figure)}


class Noised(Disclosure):
    """A hospital's figures in a deployment, by the rules of its policy.

    Args:
        request: Its hospital has the images.
        rules: The table `figures` of the policy.

    Attributes:
        noise: Follows from the hospital's secret.
        effects: How much one patient can change each figure, at the most.
    """

    def __init__(self, request: Inquiry, rules: FigureRules) -> None:
        self.rules, self.smallest, self.most = rules, rules.smallest_group, rules.max_models
        super().__init__(request)
        self.noise = Noise(secret_of(request.hospital.store))
        self.effects = effects(self.patients, self.labels.cpu().numpy())
        if self.tasks is not None:
            of_tasks = effects_of_tasks(self.patients, self.tasks)
            within = {name.replace("-of-", "-in-"): size for name, size in of_tasks.items()}
            self.effects |= of_tasks | within
        if small := len(self.data.test) - len(self.labels):
            log_once(f"{small} test images are in no figure: too few patients have their class.")

    def weight(self, images: float) -> float:
        """See the base; the same for all visits that train on the hospital's own images."""
        if self.request.order.images != "own":
            return images
        # One group at the least: a model that counted nothing could not be averaged.
        return max(self.number(self.data.train_strata[self.learnt]), float(self.smallest))

    def test_figures(
        self, model: str, scores: Tensor, *, per_class: bool = False
    ) -> dict[str, float]:
        """See the base."""
        if not self.num_test:
            return {}
        scores, exact = self._score(scores[self.chosen].nan_to_num())
        told = {"num-examples": self.number(self.strata)}
        counts = count_right(scores, self.labels) if per_class else {}
        for name in self.effects.keys() & {**exact, **counts}:
            step = step_of(self.effects[name], self.rules.max_models)
            if step > COARSEST:
                log_once(f"No '{name}' leaves: too few patients for figures.max-models models.")
            elif name in exact:
                told[name] = self.noise.share(name, model, exact[name], step)
                if name in TESTED:
                    told[f"{name}-noise"] = step
            else:
                number = name.removeprefix("right-of-class-")
                images = f"images-of-class-{number}"
                share = self.noise.share(name, model, counts[name] / counts[images], step)
                size = self.number(self.strata[(self.labels == int(number)).cpu().numpy()])
                told |= {images: size, name: share * size}
        return told

    def deviations(self, figures: Iterable[str]) -> dict[str, float]:
        """The standard deviation of the noise in each of some figures."""
        names = self.effects.keys() & {*figures}
        return {name: step_of(self.effects[name], self.rules.max_models) for name in sorted(names)}

    @property
    def asked(self) -> Indices:
        """See the base; nobody else knows which they are."""
        return np.sort(self.noise.permutation(b"training images", len(self.data.train))[:IMAGES])

    def loss_figures(self, model: str, network: nn.Module) -> dict[str, float]:
        """The loss of a trained model on training images, with noise.

        The loss that its learner minimised is of all images, and has no bounds.

        Args:
            model: Its fingerprint.
            network: The model.

        Raises:
            DeadlineError: The deadline has passed.
        """
        asked, strata = self.asked, self.data.train_strata
        large = large_class_rows(self.owners[asked], strata[asked], self.smallest)
        if not len(rows := asked[large]):
            return {}
        samples = self.data.train[torch.from_numpy(rows)]
        labels = samples.labels
        effect = effects(self.owners[rows], labels.cpu().numpy())["accuracy"]
        if (step := step_of(effect, self.rules.max_models)) > COARSEST:
            return {}
        chances = probabilities(network, samples.images, self.request.clock.deadline).nan_to_num()
        worst = WORST * math.log(max(2, chances.shape[1]))
        losses = -chances[torch.arange(len(labels)), labels].double().log()
        share = losses.clamp(max=worst).mean().item() / worst
        return {"train-loss": worst * self.noise.share("train-loss", model, share, step)}

    def buffer_figures(self, figures: Mapping[str, float]) -> dict[str, float]:
        """The figures of a buffer that are about enough patients, with noise.

        A median is about the half of the patients on either side. `figures.max-detailed` buffers
        are told of, since a server can order one after the other.
        """
        buffer, most = fingerprint(sorted(figures.items())), self.rules.max_detailed
        try:
            Tested(self.request.run, "buffers", "figures.max-detailed").add(buffer, "", most)
        except PolicyError as error:
            log_once(f"Of further synthetic images no figure is told. {error.explain()}")
            most = 0
        from audit.copies import HELD_OUT  # its imports take seconds

        settings = self.request.hospital.settings
        train = len(np.unique(self.owners))
        unseen = len(np.unique(self.data.test_patients))
        about = {
            **dict.fromkeys(("release-passed", "release-refused", "gan-"), math.inf),
            "release-median": train / 2,
            "held-out-refused": min(unseen, HELD_OUT),
            "release-nearer": min(train, unseen),
            "projection": min(train, settings.gan.projections),
        }
        told = {}
        for name, figure, patients in self._keep_large(figures, about, train):
            if patients == math.inf:
                told[name] = _two_digits(figure)
            elif most and (step := step_of(1 / patients, most)) <= COARSEST:
                if METRICS[metric_of(name)] is SHARE:
                    told[name] = self.noise.share(name, buffer, figure, step)
                elif figure > 0:
                    steps = round(math.log(figure) / step + self.noise.draw(name, buffer))
                    told[name] = math.exp(step * steps)
        return told

    def embedding_figures(self, figures: Mapping[str, float], rows: Indices) -> dict[str, float]:
        """The figures of embeddings of the training images `rows` that are about enough patients.

        The number of linked embeddings is told in whole groups, other figures to two digits. A
        figure that was not measured, or has no bound, stays. If images of small classes are among
        the rows, all figures stay.
        """
        if len(np.setdiff1d(rows, self.learnt)):
            return {}
        patients = len(np.unique(self.owners[rows]))
        about = {
            "embedding-bits-most": 1,
            "embedding-bits-median": patients / 2,
            "embedding-own-median": patients / 2,
            "embedding-other-median": patients / 2,
        }
        enough = self._keep_large(figures, about, patients)
        told = {name: _two_digits(figure) for name, figure, _ in enough}
        if linked := told.keys() & {"embedding-linked"}:
            exact = figures["embedding-linked"] * patients
            told |= dict.fromkeys(linked, min(self.rounded(exact) / patients, 1.0))
        return told

    def prototypes(self, model: str, network: RotationNetwork) -> dict[str, Tensor]:
        """Prototypes of the training images (strategies/protocol/prototypes.py), with noise.

        The spread is measured in pairs of patients of a class, each patient in one pair. So it
        needs no exact mean.

        Args:
            model: Its fingerprint.
            network: The model.

        Returns:
            Means [K, d], numbers of images [K] and the radius; empty if no class is large enough.
        """
        most, classes = self.rules.max_models, len(self.data.classes)
        samples = self.data.train[torch.from_numpy(self.learnt)]
        random = extract_features(network, random_samples(self.data.test, classes).images)
        bound = random.double().norm(dim=1).max().item()
        if not len(samples) or not 0 < bound < math.inf:
            return {}
        labels = samples.labels.cpu().numpy()
        features = extract_features(network, samples.images).cpu().nan_to_num().double() / bound
        pairs = np.stack([labels, self.owners[self.learnt]])
        cells, cell, sizes = np.unique(pairs, axis=1, return_inverse=True, return_counts=True)
        parts = torch.zeros(len(sizes), features.shape[1], dtype=torch.float64)  # of each patient
        parts.index_add_(0, torch.from_numpy(cell.ravel()), features)
        parts /= torch.from_numpy(sizes)[:, None]
        parts /= parts.norm(dim=1, keepdim=True).clamp(min=1)
        shared = math.sqrt(np.unique(cells[1], return_counts=True)[1].max())  # by several classes
        means, counts = torch.zeros(classes, features.shape[1]), torch.zeros(classes)
        apart = []
        for label in np.unique(labels).tolist():
            own = parts[torch.from_numpy(cells[0] == label)]
            step = step_of(2 * shared / len(own), most)
            if step <= COARSEST:
                noise = self.noise.table(f"prototype {label}", model, (features.shape[1],))
                told = step * (own.mean(dim=0) / step + torch.from_numpy(noise)).round()
                means[label], counts[label] = bound * told, self.rounded((labels == label).sum())
                one, other = own[: len(own) // 2 * 2].unflatten(0, (-1, 2)).unbind(dim=1)
                apart.append((one - other).square().sum(dim=1).clamp(max=2) / 2)
        if not apart:
            log_once("No prototype leaves: too few patients for figures.max-models models.")
            return {}
        shares = torch.cat(apart)
        step = step_of(shared**2 / len(shares), most)
        spread = self.noise.share("radius", model, shares.mean().item(), step)
        radius = torch.tensor(bound * math.sqrt(spread / features.shape[1]))
        return {"means": means, "counts": counts, "radius": radius}

    def _keep_large(
        self, figures: Mapping[str, float], about: Mapping[str, float], others: float
    ) -> Iterator[tuple[str, float, float]]:
        """Figures about enough patients, and about how many: the beginnings of names say it."""
        for name, figure in figures.items():
            patients = next((n for begin, n in about.items() if name.startswith(begin)), others)
            if patients >= self.smallest and math.isfinite(figure):
                yield name, figure, patients


def _two_digits(figure: float) -> float:
    return float(f"{figure:.2g}")


def fingerprint(parts: Iterable[object]) -> str:
    """A hash of the printed forms of several things."""
    return hashlib.sha256(repr(list(parts)).encode()).hexdigest()
