"""A hospital: its name, data, device, store and policy."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from torch import nn

from client_app.authority.identity import secret_of
from client_app.authority.node_config import (
    NodeConfig,
    combined_settings,
    is_simulated,
    own_config,
    policy_file,
)
from client_app.authority.policy import MachineRules, Policy, named_files
from client_app.datasets import LocalData, check_all_named, open_data, open_public
from client_app.datasets.own import LISTINGS, own_data
from client_app.store import DEFAULT, Store, own_folder
from learning.cpu import prepare_cpu
from learning.learners import LEARNERS
from learning.learners.plain import Learner
from learning.models import Architecture
from learning.models.preprocessing import have_unit_features, pixels_of
from learning.randomness import use_seed
from learning.samples import Samples, concatenate
from strategies.protocol.files import expand
from strategies.protocol.may_leave import OWN_FILES, OWN_SETTINGS
from strategies.protocol.names import check_name, names_of_folders, number_as_name
from strategies.protocol.settings import (
    PUBLIC,
    Settings,
    SettingsError,
    require,
    rng_for,
    turn_value,
)
from strategies.registry import strategy_of


@dataclass(frozen=True)
class Hospital:
    """A hospital's data, settings and files in one run."""

    name: str  # the hospital's name in the federation
    settings: Settings  # the settings of the run, with the hospital's own `dataset`
    data: LocalData  # the images of `task`, on `device`
    device: torch.device  # the device for all computations
    model: str  # the name of the hospital's first network
    store: Store  # the hospital's folder
    identity: Path = Path()  # the file with the hospital's own keys
    # The file with the members' keys, or "first-use"; empty = parcels are not sealed
    members: str = ""
    # The number of simulated hospitals that share the data set; 0 = no simulation
    partitions: int = 0
    # The hospital's policy; None in a simulation, where all hospitals have one owner
    policy: Policy | None = None
    keep: str = "none"  # the models that the hospital keeps (client_app.afterwards.home)
    # The settings that the node-config replaces, as "key=value"; files have no name
    own_settings: tuple[str, ...] = ()
    # All images, before they are cut into tasks; None = `data` has them
    whole: LocalData | None = None
    task: int = 0  # the task, from 1; 0 = no tasks, or all images

    @property
    def machine(self) -> MachineRules | None:
        """The policy's rules about the machine; None in a simulation."""
        return self.policy.machine if self.policy else None

    @property
    def smallest_group(self) -> int:
        """The policy's `figures.smallest-group`, in patients; 1 in a simulation."""
        return self.policy.figures.smallest_group if self.policy else 1

    @property
    def secret(self) -> bytes:
        """The secret of the store, which keys hashes of images; empty in a simulation."""
        return secret_of(self.store) if self.policy else b""

    @property
    def architecture(self) -> Architecture:
        """The architecture of the hospital's first network, for its images or features."""
        shape, classes = self.data.train.shape, len(self.data.classes)
        if self.data.whole:
            return replace(self.data.whole, classes=classes).head(shape[0])
        pixels = pixels_of(self.settings, self.model)
        unit, hidden = have_unit_features(self.settings.pretrained), self.settings.mlp.widths
        return Architecture(self.model, *shape, classes, hidden, pixels, unit_features=unit)

    @property
    def memory_of_a_visit(self) -> tuple[int, int, int]:
        """Images in a batch, images that the learner keeps, and its copies of the weights.

        All tasks count as equally large.
        """
        images = len((self.whole or self.data).train)
        return self.learner.memory_of_a_visit(self.settings, images)

    def bytes_beside(self, network: Architecture, kept: int) -> int:
        """Bytes of a visit beside a network and so many kept images."""
        return self.learner.bytes_beside(network, self.settings, kept)

    @property
    def learner(self) -> type[Learner]:
        """The learner of the run's visits."""
        return LEARNERS[strategy_of(self.settings).learner]

    @property
    def card(self) -> dict[str, str | list[str] | list[int]]:
        """The facts about the hospital for enrolment: name, classes, shape of images (C, H, W).

        Of features it is their shape, and the hash of the frozen weights that made them.
        """
        classes, shape = list(self.data.classes), list(self.data.train.shape)
        frozen = {"frozen": self.data.whole.frozen} if self.data.whole else {}
        return {"hospital": self.name, "classes": classes, "shape": shape, **frozen}

    def first_model(self, own_start: bool = False) -> nn.Module:
        """A network with random weights or, with the setting `pretrained`, with trained ones.

        A head on features starts from the head of an exported frozen network, if `pretrained`
        names one for the same classes. Else `pretrained` is for the frozen network alone.

        With `own_start` the hospital has its own random weights; else all hospitals have the same.

        Raises:
            ModelError: The network cannot be built, or the trained weights are for another one.
        """
        architecture, settings = self.architecture, self.settings
        with use_seed(rng_for(settings.seed, "model", hospital=self.name if own_start else "")):
            network = architecture.build()
        if settings.pretrained:
            # Also imports torchvision.
            from learning.models.pretrained import load_head, load_pretrained

            if self.data.whole:
                load_head(network, settings.pretrained, self.data.classes)
            else:
                load_pretrained(network, architecture, settings.pretrained, self.data.classes)
        return network

    def select_task(self, task: int, arrived: Sequence[int] = ()) -> "Hospital":
        """The hospital with the images of a task (`LocalData.images_at`).

        Raises:
            DataError: An image belongs to no known task.
            SettingsError: The classes cannot be cut into such tasks.
            PolicyError: A class of the hospital is in no task, or the copies of its images for all
                tasks would need too much memory.
        """
        whole = self.whole or self.data
        if self.policy and whole.tasks:
            check_all_named(whole.classes_present, whole.tasks.class_names)
            copied = whole.bytes_copied(len(arrived) or task) / 1e9
            self.policy.machine.uphold("max-memory-gb", copied)
        return replace(self, data=whole.images_at(task, arrived), whole=whole, task=task)

    def images_of_all(self) -> Samples:
        """The training images of all simulated hospitals, of all tasks up to this one.

        Raises:
            SettingsError: The hospital is not simulated.
        """
        if not self.partitions:
            raise SettingsError(
                "The setting 'strategy' is 'centralized' with real images, which works in a "
                "simulation only: this hospital's images do not leave it."
            )
        whole = self.whole or self.data
        count, classes, store = self.partitions, whole.classes, self.store.folder.parent
        each = (open_data(self.settings, index, count, classes, store) for index in range(count))
        return concatenate(data.train_so_far(self.task) for data in each).to(self.device)

    def public(self, key: str) -> Samples:
        """All images of the public archive that the setting `key` names.

        Raises:
            SettingsError: The value of the setting is not `PUBLIC` and an absolute path.
            DataError: The archive cannot be used, or its images have another shape.
        """
        chosen = str(self.settings.run_config[key])
        file = chosen.removeprefix(PUBLIC)
        require(chosen != file, key, chosen, f"{PUBLIC}<absolute file>")
        store = self.store.folder.parent
        return open_public(file, self.settings, self.data, store, self.machine).to(self.device)


def open_hospital(context: Context, name: str = "", classes: tuple[str, ...] = ()) -> Hospital:
    """Open the hospital of a message.

    `context` has the run's settings and the hospital's node-config. `name` is that at the server,
    for a hospital without `site`. `classes` are the federation's; empty before they are known.

    Raises:
        SettingsError: A setting, the policy or the hospital's name cannot be used.
        PolicyError: The run asks for more than the hospital allows.
        DataError: The hospital's data cannot be used.
    """
    node_config = own_config(context)
    own = NodeConfig.read(node_config)
    policy = None if is_simulated(node_config) else Policy.read(policy_file(node_config))
    settings = _own_settings(context.run_config, node_config, policy)
    index, hospitals = own.partition_id, own.num_partitions
    if policy:
        policy.check(settings)
        if not (own.dataset or own.data_dir):
            raise SettingsError("The hospital does not name its images: set 'data-dir' there.")
        if not own.site:
            text = "The hospital does not say its name: set 'site' in its node-config."
            raise SettingsError(text)
    model = own.model or turn_value(settings.model, index)
    dataset = own.dataset
    if own.data_dir:
        dataset = f"{dataset}:{own.data_dir}" if dataset else own_data(own.data_dir)
    settings = replace(settings, dataset=dataset or settings.dataset)
    if settings.train.freeze == "body":  # the images become features of this network
        settings = replace(settings, model=model)
    # The hospital's own name comes before the server's: the name decides on keys and store.
    name = own.site or name or simulated_name(settings.dataset, index, max(hospitals, 1))
    try:
        check_name(name)
    except ValueError as error:
        raise SettingsError(f"{error} Set 'site' in the hospital's node-config.") from error
    store = expand(own.store_dir or DEFAULT)
    classes = classes or tuple(settings.class_names)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    prepare_cpu(settings.cpu_threads)
    machine = policy.machine if policy else None
    chosen = tuple(policy.images.classes) if policy else None
    folder = Store(own_folder(store / name))
    secret = secret_of(folder) if policy else b""
    data = open_data(
        settings, index, max(hospitals, 1), classes, store, machine, chosen, secret
    ).to(device)
    if not policy:  # only now: hospitals whose data were opened with equal settings share them
        train, gan = settings.train.hospital_settings(index), settings.gan.hospital_settings(index)
        settings = replace(settings, train=train, gan=gan)
    return Hospital(
        name=name,
        settings=settings,
        data=data,
        device=device,
        model=model,
        partitions=hospitals,
        store=folder,
        identity=expand(own.identity or store / name / "identity"),
        members=own.members,
        policy=policy,
        # The results of a simulation have its models.
        keep=own.keep or ("final" if policy else "none"),
        own_settings=tuple(
            f"{key}={'a file of its own' if key in OWN_FILES else node_config[key]}"
            for key in OWN_SETTINGS
            if key in node_config
        ),
    )


def _own_settings(
    run_config: Mapping[str, Any], node_config: Mapping[str, Any], policy: Policy | None
) -> Settings:
    """The run's settings, with the hospital's own values in place."""
    settings = combined_settings(run_config, node_config)
    if policy is None:
        return settings
    for key in named_files(run_config):
        if key not in node_config:
            raise SettingsError(
                f"The run names a file in '{key}', and a hospital opens no such file. Set '{key}' "
                "in the hospital's node-config."
            )
    asked, rules = settings.release, policy.release
    allowed = replace(
        asked,
        without_privacy=asked.without_privacy and rules.allow_without_privacy,
        untested=asked.untested and rules.allow_untested,
    )
    # More threads than cores slow the hospital's machine down, and could use up its processes.
    threads = min(settings.cpu_threads, os.cpu_count() or 1)
    # Otherwise a server could learn the share of unusable images from refusals.
    quarantined = policy.images.max_quarantined
    return replace(settings, release=allowed, max_quarantined=quarantined, cpu_threads=threads)


def simulated_name(dataset: str, index: int, hospitals: int) -> str:
    """The name of a hospital without `site`: the name of its folder, or its number."""
    kind, _, source = dataset.partition(":")
    sources = source.split(",")
    if kind in LISTINGS and len(sources) == hospitals > 1:
        return names_of_folders(sources)[index]
    return number_as_name(index, hospitals)
