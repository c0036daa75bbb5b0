"""The figures of a hospital: test performance, without details that single out a patient.

A simulation has one owner, and its figures are exact. docs/privacy/figures.md has the rules of a
deployment. Its figures have normal noise with the standard deviation

    step = max( sqrt(s) / 2,  s sqrt(M) / SEPARATION )

and are multiples of the step in [0, 1]. s is the largest change of the figure by one patient, and M
is the number of models that may be tested (`figures.max-models`). The first term is the largest
standard error of a share of n patients, 1 / (2 sqrt(n)). By the second term, any M models together
separate two cases of one patient by SEPARATION standard deviations or less in each figure
(arXiv:1905.02383). A figure with a step above COARSEST does not leave.

- Accuracy: s is 1/n for n patients with one image each.
- Training loss: the mean of at most IMAGES training images, each clipped at WORST times the loss of
  guessing.
- Prototypes, the class means of features: each patient counts once in a class. The length of a
  patient's part is at most that of the features of random pixels. In units of this length, s is the
  largest change of all class means together by one patient.
- Figures of a buffer: s is 1/n for n patients, and M is `figures.max-detailed`. Noise and steps of
  distances are relative. A smallest distance covers one patient, and stays.
- Figures after the last round, such as counts for each class, are in details.py.

Dither of one step's width is not enough. It does not change a figure at a multiple of the step,
such as 0, so a few models would show whether a patient is present.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from client_app.authority.identity import secret_of
from client_app.authority.policy import FigureRules, PolicyError
from client_app.datasets.pool import Indices, large_class_rows
from client_app.release.noise import COARSEST, Noise, effects, effects_of_tasks, step_of
from client_app.request import Inquiry, log_once
from client_app.run import count_model
from learning.errors import DivergedError
from learning.evaluation import count_right, probabilities, score
from learning.judgement import random_samples
from learning.learners.prototypes import extract_features
from learning.models.rotation import RotationNetwork
from strategies.protocol.may_leave import METRICS, SHARE, metric_of
from strategies.protocol.parcel import Manifest
from strategies.protocol.records import ParcelError
from strategies.protocol.settings import rng_for
from strategies.protocol.tested import TESTED
from strategies.protocol.text import amount

IMAGES = 1000  # training images at most for the training loss and for operating points
WORST = 2.0  # upper limit of an image's loss, as a multiple of the loss of guessing
GUARANTEE = ("gan-epsilon", "gan-delta")  # settings of the run: rounded down they would be false


def open_disclosure(request: Inquiry) -> "Disclosure":
    """The figures that a hospital's policy allows; exact figures in a simulation."""
    policy = request.hospital.policy
    return Noised(request, policy.figures) if policy else Exact(request)


class Disclosure(ABC):
    """The figures of a hospital, in answer to one request.

    Attributes:
        rules: The policy's rules; None = exact figures.
        smallest: Smallest number of patients of a class in figures.
        chosen: Rows [n] of the test images in figures.
        labels: Classes of these test images [n].
        patients: Patients of these test images [n].
        strata: Classes of these test images, counted separately in each task [n].
        tasks: Tasks of these test images [n]; None without tasks.
    """

    rules: FigureRules | None = None
    smallest = 1

    def __init__(self, request: Inquiry) -> None:
        self.request, self.data = request, request.hospital.data
        strata, patients = self.data.test.strata, self.data.test.patients
        chosen = large_class_rows(patients, strata, self.smallest)
        self.chosen = torch.from_numpy(chosen)
        self.labels = self.data.test.labels[self.chosen]
        self.patients, self.strata = patients[chosen], strata[chosen]
        self.tasks = None if self.data.test.tasks is None else self.data.test.tasks[chosen]

    @cached_property
    def learnt(self) -> Indices:
        """Rows [m] of the training images in classes with enough patients."""
        return large_class_rows(self.data.train.patients, self.data.train.strata, self.smallest)

    def fingerprint(self, network: nn.Module, label: Manifest) -> str:
        """A hash of a question: see `question`."""
        return self.question(self.hash_model(network, label))

    def question(self, model: str) -> str:
        """A hash of a model (`hash_model`) and of all else that decides its figures.

        With other images, answers or rules, the same model is another question: it is counted
        again, and has other noise. The same noise in two figures would reveal their difference.
        """
        data, outputs = self.data, self.data.output_tasks
        images = [data.test.fingerprint, data.train.fingerprint]
        answers = [self.request.order.tasks_so_far, None if outputs is None else outputs.tolist()]
        return fingerprint([*images, *answers, self.rules, model])

    def hash_model(self, network: nn.Module, label: Manifest) -> str:
        """A hash of a model with the layers that stay here; empty if no model is counted."""
        if not (self.rules or self.request.seal):
            return ""
        digest = hashlib.sha256(label.architecture.encode())
        for name, tensor in network.state_dict().items():
            digest.update(name.encode())
            digest.update(tensor.cpu().numpy().tobytes())
        return digest.hexdigest()

    def counts(self) -> dict[str, float]:
        """The numbers of training images, test images and unusable images."""
        return {
            "num-train": self.number(self.data.train.strata[self.learnt]),
            "num-test": self.number(self.strata),
            "num-quarantined": self.round_count(self.data.quarantined),
        }

    def round_count(self, count: float) -> float:
        """A number of images or patients, rounded to whole groups of `smallest`."""
        return float(self.smallest * math.floor(count / self.smallest + 0.5))

    def number(self, strata: Indices) -> float:
        """The rounded number of images, from their classes within tasks [n].

        With tasks, the number of each stratum is rounded: no choice of tasks reveals more.
        """
        if self.tasks is None:
            return self.round_count(len(strata))
        return sum(map(self.round_count, np.unique(strata, return_counts=True)[1].tolist()), 0.0)

    def least(self, strata: Indices) -> float:
        """The least number of images with the same rounded number, from their strata [n].

        Each stratum has at least one group, and is rounded up by at most half a group.
        """
        sizes = np.unique(strata, return_counts=True)[1].tolist()
        half = self.smallest / 2
        return sum((max(self.smallest, self.round_count(size) - half) for size in sizes), 0.0)

    def admit(self, model: str, label: Manifest | None = None) -> None:
        """Refuse to test a model, by its fingerprint and its parcel's label, or count it.

        There is no label if the model has changed since it arrived.

        Raises:
            PolicyError: `figures.max-models` models were tested before.
            ParcelError: The lineage is no member. Or another model with this label was tested
                already.
        """
        place, seal = "", self.request.seal
        if seal and label:  # without seals, the server can write any label
            if label.lineage not in seal.members:
                raise ParcelError(f"No member is called '{label.lineage:.80}', like the lineage.")
            tasks = self.request.order.tasks_so_far  # the tasks decide the test images
            place = fingerprint([label.lineage, label.round, label.hop, label.epochs, tasks])
        if place or self.rules:
            run, most = self.request.run, self.rules.max_models if self.rules else None
            count_model(run, "tested", "figures.max-models", model, most, place)

    def weight(self, images: float) -> float:
        """The weight of a visit's model in an average, from the visit's number of images.

        In a deployment, all visits that train on the hospital's own images have the same weight.
        """
        if not self.rules or self.request.order.images != "own":
            return images
        # At least one group, since a model of weight 0 cannot be averaged.
        return max(self.number(self.data.train.strata[self.learnt]), float(self.smallest))

    @abstractmethod
    def test_figures(
        self, model: str, scores: Tensor, *, per_class: bool = False
    ) -> dict[str, float]:
        """The figures of a model; none if there is no test image.

        `model` is a fingerprint; `scores` [n, K] are of all test images. With `per_class` there are
        counts for each class.

        Raises:
            DivergedError: A score is not finite, in a simulation. In a deployment the image is
                answered wrongly: a failure would reveal it.
        """

    @property
    @abstractmethod
    def training_rows(self) -> Indices:
        """Rows of the training images for training losses and operating points, for all runs."""

    @abstractmethod
    def buffer_figures(self, figures: Mapping[str, float], labels: Tensor) -> dict[str, float]:
        """The figures that may leave of a buffer with labels int64 [n]."""

    @abstractmethod
    def embedding_figures(self, figures: Mapping[str, float], rows: Indices) -> dict[str, float]:
        """The finite figures of embeddings of the training images `rows` that may leave."""

    def choose(self, scores: Tensor) -> Tensor:
        """The scores [n, K] of the test images in figures, of scores [N, K] of all test images.

        An image whose scores are not finite is answered wrongly: its own class has the lowest one.
        """
        scores = scores[self.chosen]
        wrong = -one_hot(self.labels, scores.shape[1]).to(scores)
        return torch.where(scores.isfinite().all(dim=1, keepdim=True), scores, wrong)

    def _score(self, scores: Tensor) -> tuple[Tensor, dict[str, float]]:
        """Scores [n, K] of the answers that are possible now, and their exact figures."""
        scores = self._mask_future_classes(scores)
        return scores, score(scores, self.labels) | self._task_accuracies(scores)

    def _mask_future_classes(self, scores: Tensor) -> Tensor:
        """Scores [n, K] that exclude classes of later tasks as answers."""
        tasks = self.request.order.tasks_so_far
        if self.data.output_tasks is None or not tasks:
            return scores
        here = np.isin(self.data.output_tasks, tasks)
        scores = scores * torch.from_numpy(here).to(scores.device)
        return scores / scores.sum(dim=1, keepdim=True).clamp_min(torch.finfo(scores.dtype).tiny)

    def _task_accuracies(self, scores: Tensor) -> dict[str, float]:
        """The accuracies of each task, from the scores [n, K]; none without tasks.

        The accuracy in a task allows only answers of this task (Task-IL, arXiv:1904.07734).
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
    """Exact figures of all images, for a simulation, which has one owner."""

    def test_figures(
        self, model: str, scores: Tensor, *, per_class: bool = False
    ) -> dict[str, float]:
        """See the base."""
        if not len(self.labels):
            return {}
        if not scores.isfinite().all():
            raise DivergedError("The outputs of the model are not finite.")
        scores, exact = self._score(scores)
        return exact | (count_right(scores, self.labels) if per_class else {})

    @property
    def training_rows(self) -> Indices:
        """See the base."""
        drawn = rng_for(self.request.hospital.settings.seed, "operating point")
        return np.sort(drawn.permutation(len(self.data.train))[:IMAGES])

    def buffer_figures(self, figures: Mapping[str, float], labels: Tensor) -> dict[str, float]:
        """All figures."""
        return dict(figures)

    def embedding_figures(self, figures: Mapping[str, float], rows: Indices) -> dict[str, float]:
        """All measured figures."""
        return {name: figure for name, figure in figures.items() if math.isfinite(figure)}


class Noised(Disclosure):
    """A hospital's figures in a deployment, by the rules of its policy.

    Attributes:
        noise: Noise from the hospital's secret.
        effects: Largest change of each figure by one patient.
    """

    rules: FigureRules

    def __init__(self, request: Inquiry, rules: FigureRules) -> None:
        self.rules, self.smallest = rules, rules.smallest_group
        super().__init__(request)
        self.noise = Noise(secret_of(request.hospital.store))
        self.effects = effects(self.patients, self.labels.cpu().numpy())
        if self.tasks is not None:
            of_tasks = effects_of_tasks(self.patients, self.tasks)
            within = {name.replace("-of-", "-in-"): size for name, size in of_tasks.items()}
            self.effects |= of_tasks | within
        if small := len(self.data.test) - len(self.labels):
            images = amount(small, "test image")
            log_once(f"Figures leave out {images}: too few patients have their class.")

    def test_figures(
        self, model: str, scores: Tensor, *, per_class: bool = False
    ) -> dict[str, float]:
        """See the base."""
        if not len(self.labels):
            return {}
        scores, exact = self._score(self.choose(scores))
        figures = {"num-examples": self.number(self.strata)}
        counts = count_right(scores, self.labels) if per_class else {}
        for name, step in self.deviations({**exact, **counts}).items():
            if step > COARSEST:
                log_once(f"No '{name}' leaves: too few patients for figures.max-models models.")
            elif name in exact:
                figures[name] = self.noise.share(name, model, exact[name], step)
                if name in TESTED:
                    figures[f"{name}-noise"] = step
            else:
                number = name.removeprefix("right-of-class-")
                images = f"images-of-class-{number}"
                share = self.noise.share(name, model, counts[name] / counts[images], step)
                size = self.number(self.strata[(self.labels == int(number)).cpu().numpy()])
                figures |= {images: size, name: share * size}
        return figures

    def deviations(self, figures: Iterable[str]) -> dict[str, float]:
        """Name -> standard deviation of the noise, for the given figures."""
        names = self.effects.keys() & {*figures}
        return {name: step_of(self.effects[name], self.rules.max_models) for name in sorted(names)}

    @property
    def training_rows(self) -> Indices:
        """See the base; nobody else knows these rows."""
        return np.sort(self.noise.permutation(b"training images", len(self.data.train))[:IMAGES])

    def loss_figures(self, model: str, network: nn.Module) -> dict[str, float]:
        """The loss of a trained model on training images, with noise.

        The loss of the learner is not used: it covers all images, and is unbounded.

        Raises:
            DeadlineError: The deadline has passed.
        """
        drawn, owners = self.training_rows, self.data.train.patients
        large = large_class_rows(owners[drawn], self.data.train.strata[drawn], self.smallest)
        if not len(rows := drawn[large]):
            return {}
        samples = self.data.train[torch.from_numpy(rows)]
        labels = samples.labels
        effect = effects(owners[rows], labels.cpu().numpy())["accuracy"]
        if (step := step_of(effect, self.rules.max_models)) > COARSEST:
            return {}
        chances = probabilities(network, samples.images, self.request.clock.deadline).nan_to_num()
        worst = WORST * math.log(max(2, chances.shape[1]))
        losses = -chances[torch.arange(len(labels)), labels].double().log()
        share = losses.clamp(max=worst).mean().item() / worst
        return {"train-loss": worst * self.noise.share("train-loss", model, share, step)}

    def buffer_figures(self, figures: Mapping[str, float], labels: Tensor) -> dict[str, float]:
        """The figures of a buffer with labels int64 [n] that cover enough patients, with noise.

        Only `figures.max-detailed` buffers get figures: a server can order one after another.
        A figure is about patients of the classes of the buffer, which a run chooses. A mean over n
        images of a buffer is about n patients at most.
        """
        most = self.rules.max_detailed
        buffer = fingerprint([most, *sorted(figures.items())])
        try:
            count_model(self.request.run, "buffers", "figures.max-detailed", buffer, most)
        except PolicyError as error:
            log_once(f"Figures of further synthetic images do not leave. {error.explain()}")
            most = 0
        from audit.copies import HELD_OUT  # its imports take seconds

        settings, own, size = self.request.hospital.settings, self.data.train, len(labels)
        shown = torch.isin(own.labels.cpu(), labels.cpu()).numpy()
        train = len(np.unique(own.patients[shown]))
        unseen = len(np.unique(self.data.held_out.patients))
        about = {
            **dict.fromkeys(("release-passed", "release-refused", "gan-"), math.inf),
            **dict.fromkeys(("release-discarded", "mml-", "diversity-"), min(train, size)),
            "release-median": min(train, size) / 2,  # a median covers half of the patients
            "held-out-refused": min(unseen, HELD_OUT),
            "release-nearer": min(train, unseen, size),
            "projection": min(train, settings.gan.projections),
        }
        answer = {}
        for name, figure, patients in self._keep_large(figures, about, train):
            if patients == math.inf:
                answer[name] = figure if name in GUARANTEE else _two_digits(figure)
            elif most and (step := step_of(1 / patients, most)) <= COARSEST:
                if METRICS[metric_of(name)] is SHARE:
                    answer[name] = self.noise.share(name, buffer, figure, step)
                elif figure > 0:
                    steps = round(math.log(figure) / step + self.noise.draw(name, buffer))
                    answer[name] = math.exp(step * steps)
        return answer

    def embedding_figures(self, figures: Mapping[str, float], rows: Indices) -> dict[str, float]:
        """The figures of embeddings that cover enough patients; none with images of small classes.

        The share of linked embeddings is one of two numbers that are rounded to whole groups. Other
        figures are rounded to two digits.
        """
        if len(np.setdiff1d(rows, self.learnt)):
            return {}
        patients = len(np.unique(self.data.train.patients[rows]))
        about = {"embedding-bits-most": 1, "embedding-bits-median": patients / 2}
        enough = self._keep_large(figures, about, patients)
        answer = {name: _two_digits(figure) for name, figure, _ in enough}
        if (linked := "embedding-linked") in answer:
            share = self.round_count(figures[linked] * patients) / self.round_count(patients)
            answer[linked] = min(share, 1.0)
        return answer

    def prototypes(self, model: str, network: RotationNetwork) -> dict[str, Tensor]:
        """Prototypes of the training images (strategies/protocol/prototypes.py), with noise.

        The spread is measured between neighbours in a ring of all patients of a class, so it needs
        no exact mean. Without one patient two pairs go and one comes; with another one two change.
        A pair counts 1 at most, so a patient changes the mean of n pairs by at most 2 / n.

        Returns:
            Means [K, d], numbers of images [K] and the radius; empty if all classes are too small.
        """
        most, classes = self.rules.max_models, len(self.data.classes)
        samples = self.data.train[torch.from_numpy(self.learnt)]
        random = extract_features(network, random_samples(self.data.test, classes).images)
        bound = random.double().norm(dim=1).max().item()
        if not len(samples) or not 0 < bound < math.inf:
            return {}
        labels = samples.labels.cpu().numpy()
        features = extract_features(network, samples.images).cpu().nan_to_num().double() / bound
        pairs = np.stack([labels, self.data.train.patients[self.learnt]])
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
                mean = step * (own.mean(dim=0) / step + torch.from_numpy(noise)).round()
                means[label] = bound * mean
                counts[label] = self.round_count((labels == label).sum())
                apart.append((own - own.roll(1, 0)).square().sum(dim=1).clamp(max=2) / 2)
        if not apart:
            log_once("No prototype leaves: too few patients for figures.max-models models.")
            return {}
        shares = torch.cat(apart)
        step = step_of(2 * shared**2 / len(shares), most)
        spread = self.noise.share("radius", model, shares.mean().item(), step)
        radius = torch.tensor(bound * math.sqrt(spread / features.shape[1]))
        return {"means": means, "counts": counts, "radius": radius}

    def _keep_large(
        self, figures: Mapping[str, float], about: Mapping[str, float], others: float
    ) -> Iterator[tuple[str, float, float]]:
        """Yield name, value and number of patients of finite figures that cover enough patients.

        `about` maps the start of a name to this number; `others` is the number for other names.
        """
        for name, figure in figures.items():
            patients = next((n for begin, n in about.items() if name.startswith(begin)), others)
            if patients >= self.smallest and math.isfinite(figure):
                yield name, figure, patients


def _two_digits(figure: float) -> float:
    return float(f"{figure:.2g}")


def fingerprint(parts: Iterable[object]) -> str:
    """A hash of the printed forms of several objects."""
    return hashlib.sha256(repr(list(parts)).encode()).hexdigest()
