"""Sums: hospitals add up sums of frozen features, which determine a classifier without training.

With features z of a frozen network (`train.freeze`), hospital j has for each class c the number of
its images n_jc, and the sums s_jc of z and G_jc of z zᵀ. A parcel goes round the hospitals, in
order of their names, and each adds its own. The totals give the class-balanced ridge classifier:

    W = (A + λ tr(A)/d I)⁻¹ [b_1 … b_K]    A = Σ_c Σ_j G_jc / n_c    b_c = Σ_j s_jc / n_c

with n_c = Σ_j n_jc: the one of all images in one place, whatever the order and the split. Fed3R
(Fanì et al., ICML 2024, arXiv:2406.01116), analytic federated learning (He et al.,
arXiv:2405.16240), FedCGS (Guan et al., AAAI 2025, arXiv:2503.06962). A round is a ring:

    add     the first hospital adds a random mask, too; so no other hospital and no server sees the
            sums of one hospital
    close   the parcel returns to the first hospital, which takes the mask off and solves for W
    home    each hospital solves with its own sums counted 1 + κ times. This classifier stays there,
            and is tested there in place of W

A hospital that is away is missing from the ring, and joins the next one. In a run with tasks each
hospital also adds the sums of its earlier tasks, so nothing is forgotten. A task in which it was
away is never added. A hospital without images of the present task is missing from the ring, with
all its sums.

Deviations:
 1. Sums are of whole numbers modulo 2^64, so addition is exact (learning/sums.py).
 2. Classes weigh alike; in the papers images do. With `sums.weights = "equal"` hospitals do, too:
    the sums of each are divided by its number of images, of all tasks that it has added.
 3. λ is relative to the mean eigenvalue of A. There is no bias. FedCGS has Gaussian naive Bayes in
    the place of the ridge. Totals with noise have another classifier (learning/closed_form.py).
 4. Own weight κ, masks and noise are ours.

The hospital's half: client_app/release/sums/ring.py.
"""

from collections.abc import Mapping
from dataclasses import replace
from logging import WARNING

from flwr.common import log

from strategies.engine.state import Model, State
from strategies.engine.strategy import Strategy
from strategies.engine.visit import Visit
from strategies.protocol.names import join_names
from strategies.protocol.settings import Settings, require
from strategies.protocol.sums import ADD, CLOSE, HOME, SumsSettings

RING = "the ring"  # the model of the parcel that is under way; no hospital has such a name


class Sums(Strategy):
    """One classifier, which each ring replaces; it starts as the first hospital's model."""

    learner = "sums"
    # Hospitals test classifiers of their own sums: a head of one round is no fair comparison
    has_baseline = False
    needs_fresh_optimizer = "which trains without an optimizer"
    needs_rounds = "its sums go round all hospitals, one after the other"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.own = settings.section("sums", SumsSettings)
        self.keeps_layers = self.own.kappa != 0
        frozen = settings.train.freeze
        require(frozen == "body", "train.freeze", frozen, "body with strategy 'sums'")

    def start(self, state: State, newcomers: Mapping[str, Model]) -> None:
        """Take in the first hospital's model alone."""
        if not state.models:
            state.models.update(list(newcomers.items())[:1])

    def plan(self, state: State) -> list[Visit]:
        """The parcel goes to the next hospital, then back to the first, then to all."""
        hospitals, ring = state.hospitals, self._ring(state)
        if state.hop < len(hospitals):
            return [self._visit(hospitals[state.hop], RING if ring else _head(state), ADD)]
        if state.hop == len(hospitals) and ring:
            return [self._visit(ring[0], RING, CLOSE)]
        if state.hop == len(hospitals) + 1 and _is_closed(ring) and self.own.kappa:
            return [self._visit(hospital, RING, HOME) for hospital in ring[1:]]
        return []

    def _visit(self, hospital: str, model: str, leg: int) -> Visit:
        return self.visit(hospital, model, epochs=1, leg=leg)

    def kinds(self) -> list[Visit]:
        """The three legs of a ring."""
        return [self._visit("", "", leg) for leg in (ADD, CLOSE, HOME)]

    def _ring(self, state: State) -> list[str]:
        """The hospitals of this round's ring so far, in order; the first one again once closed."""
        if RING not in state.models:
            return []
        before, now = (
            state.shelf.label(state.models[name].parcel).visited for name in (_head(state), RING)
        )
        return now[len(before) :]

    def arrived(self, state: State, visit: Visit, trained: Model | None) -> None:
        """Keep the parcel on its way; a hospital's classifier for home does not leave it."""
        if trained and visit.leg != HOME:
            # No copy to go back to: who gets two states of a ring has the sums between them.
            state.models[RING] = replace(trained, place=visit.hospital, good="")

    def finish_round(self, state: State) -> None:
        """The classifier of a closed ring replaces the one before."""
        ring, head = self._ring(state), _head(state)
        new = state.models.pop(RING, None)
        if new and _is_closed(ring):
            state.models[head] = replace(new, good=state.models[head].parcel)
            if missing := sorted({*state.hospitals} - {*ring}):
                log(WARNING, "The totals lack the sums of %s", join_names(missing))
        else:
            log(WARNING, "The ring of round %d was not closed: it has no totals", state.round)

    def holders(self, state: State) -> dict[str, str]:
        """Every hospital uses the one classifier."""
        return dict.fromkeys(state.hospitals, _head(state))


def _head(state: State) -> str:
    """The name of the classifier in use."""
    return next(name for name in state.models if name != RING)


def _is_closed(ring: list[str]) -> bool:
    return len(ring) > 1 and ring[-1] == ring[0]
