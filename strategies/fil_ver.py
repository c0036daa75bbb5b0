"""FIL-VER: hospitals share embeddings of their images, and the server trains on them, too.

Park et al., "Tackling dynamics in federated incremental learning with variational embedding
rehearsal", arXiv:2110.09695. Images come task by task, and images of earlier tasks are gone. An
encoder f* is trained on the first task and then frozen. At iteration T hospital j trains the
classifier w on embeddings z = f*(x) of its present images and on embeddings kept from earlier
tasks. It sends w_j with a sample R_j of (z, y). The server averages, and then trains on all its R:

    w = Σ_j N_j w_j / Σ_j N_j                                                        (Eq. 1)
    w ← w − η ∇ ℓ(w; z, y)    for (z, y) from R, S_max times          (Algorithm 1, SST)

`filver.variant` chooses the content of R_j: `sampled` has embeddings z = µ + σ ε; `stats` has µ and
σ², from which the server draws z; `ebr` has the embeddings f(x) of an encoder without noise. The
paper proposes `sampled`, because the other two identify an image. With `filver.server-steps = 0`
no hospital sends embeddings, and only hospitals rehearse.

`filver.offline` is the paper's benchmark: w is trained on the embeddings of all tasks and hospitals
in one place. In round 1 the encoder is trained on the first task, as usual. From round 2 on one
hospital trains w.

Deviations:
 1. The paper trains the encoder on all images of the first task in one place. Here the first
    hospital trains it, on its own images (`first-hospital`) or on a public archive. `pooled` is the
    paper's way, and works in simulations only.
 2. Hospital j draws R_j once per task, with one ε for each image, and sends it once. A new sample
    in every round, as in Algorithm 1, would let the server average the noise away.
 3. The server rehearses on the embeddings of all rounds (section 3.3), not of the last round alone
    (Algorithm 1). It draws equally many embeddings of each task.
 4. N_j is the number of images of the task, without rehearsed embeddings.
 5. A model is tested with µ in the place of z.

The hospital's half: learning/learners/fil_ver.py. The encoder travels to each hospital once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from logging import INFO, WARNING
from typing import Annotated, Literal

from flwr.app import ArrayRecord
from flwr.common import log

from strategies.engine.state import Model, State
from strategies.engine.topology import GLOBAL
from strategies.engine.visit import Visit
from strategies.fedavg import FedAvg, build_global, trained_copies
from strategies.protocol.declared import Passes, bounds, declare, pattern
from strategies.protocol.order import Images
from strategies.protocol.parcel import pack
from strategies.protocol.settings import Settings, require, rng_for
from strategies.protocol.text import amount

ENCODER = "encoder."  # prefix of the names of its arrays

_PRETRAIN = "first-hospital, public:<absolute file>, pooled or none"


@declare
class FilVerSettings:
    """The keys `filver.*` that the method reads; the learner reads the others."""

    variant: Literal["sampled", "stats", "ebr"]
    pretrain: Annotated[str, pattern("first-hospital|pooled|none|public:/.*", _PRETRAIN)]
    pretrain_epochs: Passes
    server_steps: Annotated[int, bounds(0, 1_000_000)]
    offline: bool


class FilVer(FedAvg):
    """FedAvg of a classifier of embeddings, with rehearsal at hospitals and at the server."""

    learner = "fil-ver"
    has_encoder = True
    needs_fresh_optimizer = "whose server trains the average further"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.own = settings.section("filver", FilVerSettings)
        allowed = (
            "0 with strategy 'fil-ver', whose server asks each hospital for embeddings once a task"
        )
        require(self.sample == 0, "fedavg.sample", self.sample, allowed)
        network = "ebr" if self.own.variant == "ebr" else "vee"
        allowed = f"'{network}' with filver.variant '{self.own.variant}'"
        require(settings.model == network, "model", settings.model, allowed)
        allowed = "same, and task-spread 0: 'fil-ver' gives all hospitals the same task"
        require(not settings.own_streams, "task-order", settings.task_order, allowed)
        rounds, allowed = settings.num_server_rounds, "2 or more with filver.offline"
        require(rounds > 1 or not self.own.offline, "num-server-rounds", rounds, allowed)
        self.images = "everyone" if self.own.offline else "own"
        sends = self.own.server_steps > 0 and not self.own.offline
        self.sent = self.own.variant if sends else ""  # the kind of embeddings that leave

    def task_at(self, server_round: int, hospital: str = "") -> int:
        """The present task. With `filver.offline` it is the last task from round 2 on."""
        joint = self.own.offline and server_round > 1
        return super().task_at(self.settings.num_server_rounds if joint else server_round, hospital)

    def start(self, state: State, newcomers: Mapping[str, Model]) -> None:
        """Start as FedAvg does; without pretraining the first model's encoder is kept."""
        super().start(state, newcomers)
        if self.own.pretrain == "none" and not state.encoder and state.models:
            state.encoder = _encoder(state, state.models[GLOBAL])

    def plan(self, state: State) -> list[Visit]:
        """First one hospital trains the encoder; then all present ones train the classifier."""
        present = self.present(state)
        if not state.encoder:  # if one hospital fails the next one is asked
            return [self._pretraining_visit(present[state.hop])] if state.hop < len(present) else []
        if self.own.offline and state.round > 1:  # again the next one is asked if one fails
            left = [each for each in present if each not in state.models]
            present = [] if trained_copies(state) else left[:1]
        elif self.own.offline or len(state.models) > 1:  # each hospital has a copy
            return []
        asked = {each for each in present if self._key(state, each) in state.embeddings}
        return [
            self.visit(each, GLOBAL, test=True, embeddings="" if each in asked else self.sent)
            for each in present
        ]

    def kinds(self) -> list[Visit]:
        """A visit that trains the classifier, and one that trains the encoder."""
        trains = self.visit("", GLOBAL, test=True, embeddings=self.sent)
        return [trains] if self.own.pretrain == "none" else [trains, self._pretraining_visit("")]

    def _pretraining_visit(self, hospital: str) -> Visit:
        chosen: dict[str, Images] = {"pooled": "everyone", "first-hospital": "own"}
        return self.visit(
            hospital,
            GLOBAL,
            learner="fil-ver-encoder",
            epochs=self.own.pretrain_epochs,
            images=chosen.get(self.own.pretrain, "public"),
        )

    def _key(self, state: State, hospital: str) -> str:
        return f"{self.task_at(state.round)} {hospital}"

    def arrived(self, state: State, visit: Visit, trained: Model | None) -> None:
        """Keep a hospital's embeddings; of the visit that trains the encoder keep only this."""
        if visit.learner == self.learner:
            super().arrived(state, visit, trained)
            shelf = state.shelf
            if trained and (sent := shelf.get(trained.parcel).array_records.get("embeddings")):
                alone = pack({"embeddings": sent}, shelf.label(trained.parcel))
                state.embeddings[self._key(state, visit.hospital)] = shelf.put(alone)
        elif trained is not None:
            state.encoder = _encoder(state, trained)
            first = state.models[GLOBAL]
            network = ArrayRecord({**state.shelf.arrays(first.parcel), **state.encoder_arrays})
            state.models[GLOBAL] = build_global(state, first, {"model": network}, 0)

    def merge(self, state: State, trained: Sequence[Model]) -> dict[str, ArrayRecord]:
        """The average (Eq. 1), trained for `server-steps` steps (SST) if there are embeddings.

        If this training diverges, the average goes on as it is.
        """
        # The average of equal encoders may differ from them in the last bit.
        mean = super().merge(state, trained)["model"]
        network = ArrayRecord({**mean, **state.encoder_arrays})
        if not (state.embeddings and self.own.server_steps):
            return {"model": network}
        from learning.errors import DivergedError  # here: no other server code trains
        from learning.server_training import rehearse

        by_task: dict[str, list[ArrayRecord]] = {}
        for key, name in sorted(state.embeddings.items()):
            sent = state.shelf.arrays(name, "embeddings")
            by_task.setdefault(key.partition(" ")[0], []).append(sent)
        architecture = state.shelf.label(trained[0].parcel).architecture
        steps = self.own.server_steps
        rng = rng_for(self.settings.seed, "server training", state.round)
        tasks = [*by_task.values()]
        now = replace(self.settings, train=self.settings.train.round_settings(state.round))
        try:
            rehearsed, loss = rehearse(network, architecture, tasks, now, steps, rng)
        except DivergedError as error:
            log(WARNING, "The server does not train on embeddings in this round. %s", error)
            return {"model": network}
        log(INFO, "The server trained %s on embeddings, loss %.3f", amount(steps, "step"), loss)
        return {"model": rehearsed}


def _encoder(state: State, model: Model) -> str:
    """Put the encoder of a model on the shelf as a parcel; the parcel's name."""
    network = state.shelf.arrays(model.parcel)
    arrays = {name: array for name, array in network.items() if name.startswith(ENCODER)}
    label = replace(state.shelf.label(model.parcel), lineage="encoder")
    return state.shelf.put(pack({"model": ArrayRecord(arrays)}, label))
