"""A model that a hospital trains alone, for as many rounds as the models of a past run.

A run also tests the hospital's own model before the first hand-off, which has trained for one visit
only. A model of equal training shows whether taking part was worthwhile. It also improves `predict`
(benchmarks/results/at-home.md).
"""

import json
import math
import time
from dataclasses import replace
from pathlib import Path

from torch import nn

from client_app.afterwards.home import keep_model, load_file, place_of, write_mixture
from client_app.afterwards.past_hospital import reopen_hospital
from client_app.afterwards.past_run import PastRun
from client_app.authority.policy import Policy
from client_app.hospital import Hospital
from client_app.run import check_joined, run_folder
from client_app.store import Store, own_folder
from learning.cpu import prepare_cpu
from learning.errors import ModelError
from learning.evaluation import probabilities
from learning.export import ModelManifest
from learning.judgement import WORSE, relative_loss, sample, visit_flaw
from learning.learners.plain import Learner, Received
from learning.training import train
from strategies.protocol.code import code_hash
from strategies.protocol.console import Pace
from strategies.protocol.may_leave import OWN_FILES, OWN_SETTINGS
from strategies.protocol.settings import Settings, SettingsError, rng_for
from strategies.protocol.text import amount


def settings_of(past: PastRun) -> Settings:
    """The settings of a run at the hospital, from the hospital's ledger.

    Raises:
        SettingsError: There is no ledger of the run, as in a simulation, or it is broken. Or the
            hospital set files of its own, or the run is of another version.
    """
    config = past.settings
    give = "give the settings of the run with --run-config, such as the file config.toml"
    if past.terms_fault:
        raise SettingsError(f"The settings of the run {past.run} are unknown. {past.terms_fault}")
    if not config:
        raise SettingsError(f"There is no ledger of the run {past.run}: {give} of its results.")
    for key, value in past.own_settings.items():
        if key in OWN_FILES:
            raise SettingsError(f"'{key}' was the hospital's own file: {give}, with this file.")
        if key != "model":  # the network is that of the models
            config[key] = json.loads(value)
    return Settings.parse(config)


def train_alone(past: PastRun, settings: Settings, data_dir: Path, policy: Policy | None) -> None:
    """Train a model on the hospital's images alone, keep it, and mix it with the run's models.

    With the settings of the hospital in the run, the strategy `standalone` gives the same model,
    unless the run has another learner or `train.dp`, which this model does without.

    Raises:
        SettingsError: No model of the run is at home, a setting is not that of the run, images
            arrived in tasks, or the run trained nothing.
        DataError: The images cannot be used, or are not those of the run.
        ModelError: A model cannot be built or loaded, or the training has diverged.
        PolicyError: The store would be too large.
    """
    past.require_models()
    if settings.tasks > 1:
        raise SettingsError("Images of this run arrived in tasks: no model trained on all of them.")
    if settings.strategy == "sums":
        raise SettingsError(
            "A run of the strategy 'sums' trains nothing. The classifier of the hospital's own "
            f"sums is at home already: {past.run}/own/{past.site}."
        )
    hospital = reopen_hospital(past, data_dir, policy, settings)
    theirs, whole = past.model.network.frozen, hospital.data.whole
    if theirs != (ours := whole.frozen if whole else ""):
        raise SettingsError(
            f"The SHA-256 of the frozen weights is {theirs or '(none)'} in the run, and "
            f"{ours or '(none)'} with these settings: give those of the run with --run-config."
        )
    check_joined(run_folder(Store(past.folder), past.run), settings.run_config, OWN_SETTINGS)
    prepare_cpu(settings.cpu_threads)
    fewest = policy.images.min_batch if policy else 2
    network, manifest = _train(hospital, fewest), _manifest(past, hospital)
    loss = relative_loss(network, sample(hospital.data.train))
    if flaw := visit_flaw(1.0, loss, WORSE):
        raise ModelError(
            f"Training alone diverged, and nothing was kept: {flaw}. Lower train.learning-rate (it "
            f"is {settings.train.learning_rate:g}) with --run-config."
        )
    own_folder(past.alone_file.parent)
    keep_model(replace(hospital, policy=policy), past.alone_file, network, manifest)
    # Models at home take images, also where the run trained heads on features.
    test = (reopen_hospital(past, data_dir, policy) if hospital.data.whole else hospital).data.test
    scores = {}
    for path in (*past.files.values(), past.alone_file):
        model, place = load_file(path)[0].to(hospital.device), place_of(path, past.home)
        scores[place] = probabilities(model, test.images, math.inf)
    write_mixture(past.home, scores, test.labels)


def _train(hospital: Hospital, fewest: int) -> nn.Module:
    """The model after the run's number of rounds, trained as in the strategy `standalone`.

    A step takes `fewest` images or more.
    """
    settings = hospital.settings
    network, rounds = hospital.first_model().to(hospital.device), settings.num_server_rounds
    received = Received()
    pace = Pace(f"{hospital.name} trains alone, {amount(rounds, 'round')}", "images")
    for number in range(1, rounds + 1):
        learner = Learner(network, hospital.data.train, settings, received)
        rng = rng_for(settings.seed, "visit", number, 1, hospital.name)
        in_round = settings.train.round_settings(number)
        epochs = settings.train.epochs
        train(learner, in_round, epochs, rng, math.inf, progress=pace, fewest=fewest)
        received = Received(optimizer=learner.optimizer)
    return network


def _manifest(past: PastRun, hospital: Hospital) -> ModelManifest:
    """The manifest of the model; the numbers of images are those of the run's models."""
    of_run, rounds = past.model, hospital.settings.num_server_rounds
    return replace(
        of_run,
        lineage=past.site,
        settings={**of_run.settings, "strategy": "standalone"},
        architecture=hospital.architecture.whole or hospital.architecture.to_json(),
        round=rounds,
        hop=1,
        epochs=hospital.settings.train.epochs,
        visited=[past.site] * rounds,
        replayed=[],
        not_own=[],
        parcel="",
        tested={},
        date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        code=code_hash(),
    )
