"""A rehearsal of enrolment: it finds every reason for a run to refuse a hospital."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from flwr.app import ConfigRecord, Context, RecordDict

from client_app.authority.node_config import simulate
from client_app.authority.permission import admit, admit_run, hash_weights, judge
from client_app.authority.policy import Policy, PolicyError
from client_app.datasets.findings import Finding
from client_app.datasets.pool import large_class_rows
from client_app.errors import LEAVES, ReleaseError, line_of
from client_app.hospital import Hospital, open_hospital
from strategies.protocol.may_leave import check_answer
from strategies.protocol.order import Order
from strategies.protocol.settings import Settings
from strategies.registry import strategy_of

ADVICE = "With these settings the run would refuse the hospital, or the hospital would refuse it."
CURE = "Change the setting, or the rule of the policy."


def rehearse(site: str, settings: Settings, store: Path, policy: Path | None) -> Iterator[Finding]:
    """Yield the problems of enrolment and of the first model; see `card.examine`.

    Without a policy, the default policy is checked as well.
    """
    own: dict[str, bool | float | int | str] = {
        "site": site,
        "store-dir": str(store),
        "dataset": settings.dataset,
    }
    if policy:
        own["policy"] = str(policy)
    else:
        own |= {"partition-id": 0, "num-partitions": 1}
        simulate()
    try:
        strategy = strategy_of(settings)
        hospital = open_hospital(Context(0, 0, own, RecordDict(), settings.run_config))
        admit_run(hospital)
        order = Order(0, 0, site, [], strategy.learner, "rehearsal", sealed=settings.sealed)
        order = replace(order, images=strategy.images, buffer_size=strategy.buffer_size)
        admit(hospital, strategy, "query.enrol", order)
        check_answer("query.enrol", RecordDict({"card": ConfigRecord({**hospital.card})}))
        if settings.class_names:  # the cut in tasks needs the names of all classes
            hospital = hospital.select_task(0)
        hospital.first_model()
    except tuple(LEAVES) as error:
        advice = f"{ADVICE} {CURE}" if isinstance(error, PolicyError) else ADVICE
        yield Finding("refused", line_of(error), advice)
        return
    if settings.pretrained:
        yield Finding(
            "pretrained-weights",
            f"The weights of 'pretrained' ({settings.pretrained!r}) have the SHA-256 "
            f"{hash_weights(replace(hospital.settings, model=hospital.model), hospital.data)}.",
            "All hospitals of a run with 'train.freeze' need the same. The policy's "
            "'models.weights' can name it.",
            "note",
        )
    if strategy.buffer_size:
        yield from _check_buffer(hospital, needed=strategy.needs_own_buffer)
    if hospital.policy:
        yield from _check_figures(hospital, hospital.policy.figures.smallest_group)
    else:
        yield from _check_default_policy(settings, hospital)


def _check_buffer(hospital: Hospital, *, needed: bool) -> Iterator[Finding]:
    from client_app.release.buffer import learnt_rows  # its imports take seconds

    train = hospital.data.train
    large = large_class_rows(train.patients, train.strata, hospital.smallest_group)
    try:
        possible = len(learnt_rows(hospital, large)) > 0
    except ReleaseError:
        possible = False
    if not possible:
        yield Finding(
            "no-buffer",
            "The classes have too few images or patients to train on: no synthetic images of this "
            "hospital can leave it.",
            "The hospital can take part in methods without synthetic images. Or change "
            "release.min-class-images and, in the policy, figures.smallest-group, "
            "release.min-class-training-images, release.min-averaged and "
            "images.min-train-patients.",
            "red" if needed else "amber",
        )


def _check_figures(hospital: Hospital, fewest: int) -> Iterator[Finding]:
    test = hospital.data.test
    if len(large_class_rows(test.patients, test.strata, fewest)) == 0:
        yield Finding(
            "no-figures",
            f"No class has test images of {fewest} patients (figures.smallest-group): no model "
            "gets a figure at this hospital.",
            "Add images of more patients. Or lower figures.smallest-group in the policy; then a "
            "figure tells more of each patient.",
            "amber",
        )


def _check_default_policy(settings: Settings, hospital: Hospital) -> Iterator[Finding]:
    """Yield a finding if the default policy would refuse the run."""
    rulings = judge(Policy.read(), settings, hospital.data)
    if broken := {ruling.rule: ruling for ruling in rulings if not ruling.holds}:
        refusals = [
            f"{each.rule} allows {each.allowed}; the value is {each.requested}"
            for each in broken.values()
        ]
        yield Finding(
            "default-policy",
            f"A hospital without a policy of its own refuses such a run: {'; '.join(refusals)}.",
            "A simulation has no policy. Otherwise change the settings, or the policy (--policy).",
            "amber",
        )
