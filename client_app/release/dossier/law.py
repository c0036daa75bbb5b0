"""Legal questions, with the evidence of a dossier and its gaps.

The questions come from the EDPB's Opinion 28/2024 of 17 December 2024 on AI models, section 3.2
(when a model trained on personal data is anonymous), and from the Article 29 Working Party's
Opinion 05/2014 (WP 216) on anonymisation techniques. This is no legal advice: a controller weighs
the figures as evidence, and a supervisory authority judges case by case.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """The answer of a dossier to one question."""

    question: str  # the question of the opinion, in short
    speaks: str  # evidence in the dossier; empty if there is none
    silent: str  # gaps of the evidence


def answers(dossier: Mapping[str, Any]) -> Iterator[Answer]:
    """Yield the questions, each with the evidence of the dossier and its gaps."""
    attacked = dossier["attacked"]
    trials = attacked.get("trials", ())
    verdict = attacked.get("verdict", "not attacked")
    weak = "are too weak here to exclude" if trials else "could not be tried, so nothing excludes"
    tried = {
        "passed": "The attacks of section 3 revealed less about training members than the limit.",
        "too small to tell": f"The attacks of section 3 {weak} a leak above the limit. This is no "
        "evidence against a leak.",
        "not attacked": "No attack was tried: the settings of this release ask for none.",
    }[verdict]
    shadowed = any(each["attack"] == "shadow generators" for each in trials)
    unshadowed = "" if shadowed else ", generative models of their own"
    yield Answer(
        "Opinion 28/2024: how likely is it that personal data of people in the training data are "
        "extracted directly from what is released?",
        "The check of section 2: no synthetic image is nearer to a training image than its limits "
        "allow. The check compares single images. It is evidence on regurgitation and "
        "reconstruction.",
        "Other ways of extraction were not tried, for example by somebody who also has the trained "
        "models of this run.",
    )
    yield Answer(
        "Opinion 28/2024: how likely is it that personal data are obtained from queries, on "
        "purpose or not?",
        f"{tried} Only the images can be queried: the generative model stays here.",
        "The trained models also leave, and can be queried. They are not part of this dossier. "
        "A deployed hospital's own report of the run has the attacks on them.",
    )
    yield Answer(
        "Opinion 28/2024 and recital 26 GDPR: were all means considered that are reasonably likely "
        "to be used?",
        "The attacker here has the synthetic images, some real images of the same hospital that "
        "are no training images, the image in question, and an ordinary computer."
        if trials
        else tried,
        "Attackers who know more (other releases of the same patients, records that can be "
        f"linked{unshadowed}) are not covered. The controller judges whether such means are "
        "reasonably likely.",
    )
    yield Answer(
        "Opinion 28/2024: is the assessment documented?",
        "This dossier documents the measurements before the images left: methods, limits, code and "
        "data (section 5).",
        "The hospital has its own documents of the data protection impact assessment, the advice "
        "of the data protection officer, and organisational measures.",
    )
    yield Answer(
        "WP 216, singling out: can one isolate a person's records?",
        "Section 2 (near copies) and section 3 (training members) are evidence."
        if trials
        else "Section 2 (near copies) is evidence.",
        "A rare feature of a person may show although no image is near. Classes with few images "
        "are left out for this reason. This is a precaution, not a measurement.",
    )
    yield Answer(
        "WP 216, linkability: can records of one person be linked?",
        "",
        "Not measured. Synthetic images carry no metadata, such as a name or a number.",
    )
    yield Answer(
        "WP 216, inference: can attributes of a person be inferred?",
        f"Membership in the training data is one such attribute. {tried}",
        "Other attributes were not attacked. A buffer shows the appearance of a disease on "
        "purpose. It may also show a rare feature of one person.",
    )
    if claimed := dossier["generator"].get("gan-epsilon"):
        bound = attacked.get("bound")
        proven = (
            f"The attacks prove that ε is at least {bound['audited']:.3g}, which does not "
            "contradict the claim."
            if bound
            else "No attack could test the claim."
        )
        yield Answer(
            "Is the claimed guarantee (differential privacy) plausible?",
            f"The claim is ε = {claimed:g} at δ = {dossier['generator']['gan-delta']:g}. {proven}",
            "An attack can refute a claim, but cannot prove it. It counts each image as a separate "
            "case. The analysis of the mechanism proves the claim (docs/privacy/guarantee.md).",
        )
    yield Answer(
        "Legal basis, necessity, proportionality, information of patients, their rights, "
        "transfers to third countries",
        "",
        "No figure is evidence on these questions. The controller and its data protection officer "
        "answer them.",
    )
