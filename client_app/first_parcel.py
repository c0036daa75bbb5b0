"""A hospital's first parcel: its first model, and its buffer if the order asks for one."""

from flwr.app import RecordDict
from torch import nn

from client_app.hospital import Hospital
from client_app.parcels import keep_local, pack
from client_app.received import keep_buffer
from client_app.request import Request
from learning.packing import pack_buffer
from learning.randomness import seeded
from strategies.protocol.parcel import Manifest, hash_arrays
from strategies.protocol.settings import rng_for


def first_parcel(request: Request) -> tuple[RecordDict, dict[str, float], dict[str, str]]:
    """Make the hospital's first parcel.

    Returns:
        The parcel, metrics, and what the card says of it.

    Raises:
        ModelError: The network cannot take the hospital's images, or the weights do not fit.
        SettingsError: Images of everyone are wanted outside of a simulation; or the learner, or the
            generative model, cannot be used with this network or these images.
        ReleaseError: The buffer may not leave the hospital.
        DivergedError: The training of the generative model failed.
        DeadlineError: The deadline has passed.
    """
    order, hospital = request.order, request.hospital
    if order.images == "everyone":
        hospital.everyone()  # refuses here, before the first hop
    network = _first_model(hospital, order.own_start)
    metrics: dict[str, float] = {
        "num-train": len(hospital.data.train),
        "num-test": len(hospital.data.test),
        "num-quarantined": hospital.data.quarantined,
    }
    beside, card = {}, {}
    if order.buffer_size:
        from client_app.buffer import make_buffer  # with it come imports that take seconds

        made = make_buffer(hospital, order.buffer_size, request.clock.deadline)
        beside["buffer"] = pack_buffer(made.samples)
        metrics |= made.figures
        card["release"] = f"{len(made.samples)} synthetic images passed the release check."
    label = Manifest(hospital.name, hospital.architecture.to_json(), list(hospital.data.classes))
    parcel = pack(request, network, label, beside)
    keep_local(request, network)
    if buffer := parcel.array_records.get("buffer"):
        keep_buffer(hospital.store, hash_arrays(buffer), buffer)
    return parcel, metrics, card


def _first_model(hospital: Hospital, own_start: bool) -> nn.Module:
    """A network with random weights or, with the setting `pretrained`, with trained ones.

    Args:
        hospital: Decides on the architecture.
        own_start: Whether the random weights are the hospital's own, or the same at all hospitals.
    """
    architecture, settings = hospital.architecture, hospital.settings
    architecture.check()
    with seeded(rng_for(settings.seed, "model", hospital=hospital.name if own_start else "")):
        network = architecture.build()
    if settings.pretrained:
        from learning.models.pretrained import load_pretrained  # and with it torchvision

        load_pretrained(network, architecture, settings.pretrained)
    return network
