"""A hospital's visits of a ring (strategies/sums.py): it adds its sums, and solves for classifiers.

The first hospital adds a mask, and keeps it in `masks/<round>` of the run's folder. It takes the
mask off one parcel, if `sums.min-hospitals` or more have added their sums. docs/privacy/sums.md
says who sees what.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from torch import nn

from client_app.afterwards.home import keep_own
from client_app.parcels import pack, unpack
from client_app.release.details import ALONE, Details
from client_app.release.disclosure import open_disclosure
from client_app.release.sums.own import OwnSums
from client_app.request import Request
from client_app.run import Kept
from learning.closed_form import KAPPAS, RIDGES, Head, choose, solve
from learning.errors import DivergedError
from learning.models.taps import last_layer
from learning.packing import pack_network
from learning.sums import Sums, random_mask
from strategies.protocol.parcel import Manifest, parcel_in
from strategies.protocol.records import ParcelError
from strategies.protocol.settings import rng_for
from strategies.protocol.soundness import LARGEST
from strategies.protocol.sums import ADD, CLOSE, HOME, ring_of

MOST = 2**60  # a larger total still has a mask


def visit_ring(request: Request) -> Message:
    """Do the leg of a ring that the order asks for.

    Raises:
        ParcelError: The parcel is of no ring, or of another one.
        PolicyError: The sums may not leave, the ring has too few hospitals, or the store would be
            too large.
        SettingsError: δ is too large for the number of patients.
        DivergedError: The classifier of the totals is of no use.
        DeadlineError: The deadline has passed.
    """
    visit = RingVisit(request)
    legs = {ADD: visit.add, CLOSE: visit.close, HOME: visit.solve_at_home}
    with request.clock.measure("train"):
        figures = legs[request.order.leg]()
    weight = visit.disclosure.weight(len(request.hospital.data.train))
    return request.answer({**figures, "num-examples": weight}, visit.pack())


class RingVisit:
    """A visit of a ring.

    Attributes:
        network: The network; its weights are 0 unless a leg gives it a classifier that may leave.
        visited: The visits before this one.
        begins: Whether the hospital begins a ring.
        arrived_hash: The hash of the sums that arrived; empty if there are none.
        label: The label of the parcel that leaves.
        sums: The sums that arrived, and then those that leave; None = none.
    """

    def __init__(self, request: Request) -> None:
        self.request, self.run, self.own = request, request.run, OwnSums(request)
        self.disclosure = open_disclosure(request)
        self.network, before, beside = unpack(request, parcel_in(request.message.content))
        self.visited, self.begins = before.visited, before.round < request.order.round
        self.arrived_hash = before.hash_of.get("sums", "")
        self.label = before.advance(request.order)
        sums = beside.get("sums")
        self.sums = Sums(**sums) if sums and not self.begins else None
        self._set(None)

    def add(self) -> dict[str, float]:
        """Add the hospital's own sums to those that arrived, or to a new mask."""
        ring = ring_of(self.visited)
        if not self.begins and not ring:  # its totals have no mask
            raise ParcelError("This ring of sums is closed.")
        if not self.begins and self.request.hospital.name in ring:
            raise ParcelError("This hospital's sums are in this ring already.")
        figures = self.own.release()
        sent, exact = self.own.load_kept()
        if self.begins:
            self.own.check_disk(sent)
            self.sums = random_mask(sent)
            self.run.save(self._mask, self.sums.arrays())
        self.sums = self._arrived_sums(sent) + sent
        if ALONE not in self.run.names("."):
            self._keep_alone(exact)
        return figures

    def close(self) -> dict[str, float]:
        """Take the mask off the totals; the network becomes their classifier."""
        ring, name = ring_of(self.visited), self.request.hospital.name
        if ring[:1] != [name]:
            raise ParcelError(f"'{name}' has not begun this ring of sums.")
        if policy := self.request.hospital.policy:
            policy.sums.uphold("min-hospitals", len({*ring}))
        mask = self.run.load(self._mask)
        if not mask:
            raise ParcelError("The mask of this ring is not in the hospital's store: it was lost.")
        if str(mask.pop("closed", self.arrived_hash)) != self.arrived_hash:
            raise ParcelError("The mask of this ring came off another parcel before.")
        sent, _ = self.own.load_kept()
        total = self._arrived_sums(sent) - Sums.from_arrays(mask)
        if any((each.abs() >= MOST).any() for each in vars(total).values()):
            raise ParcelError("The sums lack the mask of this ring, or a hospital has spoilt them.")
        # After a kill the server may send the same parcel again.
        self.run.save(self._mask, {**mask, "closed": np.array(self.arrived_hash)})
        noise = self.own.noise_in(ring)
        ridge, _ = self._choose(total - sent, [0], noise)
        self._set(solve(total, ridge, noise))
        if any((each.abs() >= LARGEST).any() for each in self.network.parameters()):
            limit = f"beyond {LARGEST:,.0f}"
            raise DivergedError(f"The classifier of the totals is {limit}: raise sums.ridge.")
        self.sums = total
        return {}

    def solve_at_home(self) -> dict[str, float]:
        """Keep the classifier with own sums counted 1 + κ times; nothing leaves."""
        ring = ring_of(self.visited[:-1])
        if self.visited[-1:] != ring[:1] or self.request.hospital.name not in ring:
            raise ParcelError("This hospital's sums are not in this ring.")
        sent, exact = self.own.load_kept()
        others = self._arrived_sums(sent) - sent
        kappa, noise = self.own.settings.kappa, self.own.noise_in(ring)
        ridge, kappa = self._choose(others, KAPPAS if kappa < 0 else [kappa], noise)
        self._set(solve(others + exact * (1 + kappa), ridge, noise))
        state = {name: each.cpu().numpy() for name, each in self.network.state_dict().items()}
        Kept(self.run, "local").save(self.request.visit, state)
        self._set(None)
        self.sums = None
        return {}

    def pack(self) -> RecordDict:
        """The parcel that leaves."""
        arrays = self.sums.arrays() if self.sums else {}
        record = ArrayRecord({name: Array(each) for name, each in arrays.items()})
        return pack(self.request, self.network, self.label, {"sums": record} if arrays else {})

    @property
    def _mask(self) -> str:
        return f"masks/{self.request.order.round}"

    def _arrived_sums(self, like: Sums) -> Sums:
        """The sums of this round's ring, in the shapes of `like`."""
        if self.sums is None or self.sums.firsts.shape != like.firsts.shape:
            raise ParcelError(f"The parcel has no sums of {like.firsts.shape[1]} features.")
        return self.sums

    def _choose(self, others: Sums, kappas: Sequence[int], noise: float = 0.0) -> tuple[float, int]:
        settings, hospital = self.own.settings, self.request.hospital
        rng = rng_for(hospital.settings.seed, "folds", hospital=hospital.name)
        ridges = [settings.ridge] if settings.ridge else RIDGES
        images, deadline = self.own.all_images, self.request.clock.deadline
        return choose(others, images, ridges, kappas, rng, noise, deadline)

    def _set(self, head: Head | None) -> None:
        """Give the network a classifier of d' features; None = weights of 0.

        Larger weights become `LARGEST`, and are not refused here: of exact sums that stay at the
        hospital a refusal would reveal a patient.
        """
        layer, seed = last_layer(self.network), self.request.hospital.settings.seed
        with torch.no_grad():
            nn.init.zeros_(layer.bias)
            nn.init.zeros_(layer.weight)
            if head is not None:
                lifted = head.lift(layer.in_features, rng_for(seed, "projection"))
                parts = (layer.weight, lifted.weights), (layer.bias, lifted.biases)
                for own, found in parts:
                    found = found.nan_to_num(LARGEST).clamp(-LARGEST, LARGEST)
                    own += found.to(own.device)

    def _keep_alone(self, exact: Sums) -> None:
        """Keep the classifier of the hospital's own sums, for comparison."""
        ridge, _ = self._choose(exact * 0, [0])
        self._set(solve(exact, ridge))
        name = self.request.hospital.name
        alone = replace(self.label, lineage=name, visited=[name], parent="")
        alone = Manifest.read(pack_network(self.network, alone))
        Details(self.disclosure).keep_alone(self.network, alone)
        keep_own(self.disclosure, self.network, alone)
        self._set(None)
