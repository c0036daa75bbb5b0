"""Which legal question a figure of a dossier speaks to, and which it does not.

The questions are those of the EDPB's Opinion 28/2024 of 17 December 2024 on AI models, section 3.2
(when a model trained on personal data is anonymous), and the three of the Article 29 Working
Party's Opinion 05/2014 (WP 216) on anonymisation techniques. This is no legal advice: figures are
evidence that a controller weighs, and a supervisory authority judges case by case.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """What a dossier has to say to one question.

    Attributes:
        question: As the opinion asks it, in short.
        speaks: What in the dossier is evidence on it; empty if nothing is.
        silent: What the dossier does not show.
    """

    question: str
    speaks: str
    silent: str


def answers(dossier: Mapping[str, Any]) -> Iterator[Answer]:
    """The questions, each with what the dossier says and does not say."""
    attacked = dossier["attacked"]
    verdict = attacked.get("verdict", "not attacked")
    tried = {
        "passed": "The attacks of section 3 told less than the limit of who was among the training "
        "images.",
        "too small to tell": "The hospital has too few images for attacks to exclude a leak above "
        "the limit. That is no evidence that nothing leaks.",
        "not attacked": "No attack was tried: the settings of this release ask for none.",
    }[verdict]
    shadowed = any(each["attack"] == "shadow generators" for each in attacked.get("trials", ()))
    unshadowed = "" if shadowed else ", generative models of their own"
    yield Answer(
        "Opinion 28/2024: how likely is it that personal data of people in the training data are "
        "extracted directly from what is released?",
        "The check of section 2: no synthetic image is nearer to a training image than its limits "
        "allow. It compares single images, and is evidence on regurgitation and reconstruction.",
        "Other ways to extract, by somebody who also has the trained models of this run, were not "
        "tried.",
    )
    yield Answer(
        "Opinion 28/2024: how likely is it that personal data are obtained from queries, on "
        "purpose or not?",
        f"{tried} The images are all there is to query: the generative model stays here.",
        "The trained models travel, too, and can be queried. They are no part of this dossier; "
        "a deployed hospital's own report of the run has the attacks on them.",
    )
    yield Answer(
        "Opinion 28/2024 and recital 26 GDPR: were all means considered that are reasonably likely "
        "to be used?",
        "The attacker here has the synthetic images, some real images of the same hospital that "
        "were not learnt from, the image in question, and an ordinary computer.",
        "Attackers who know more (other releases of the same patients, records that can be "
        f"linked{unshadowed}) are not covered. Whether such means are reasonably likely is for the "
        "controller to judge.",
    )
    yield Answer(
        "Opinion 28/2024: is the assessment documented?",
        "This dossier: what was measured, how, with which code and data (section 5), under which "
        "limits, before the images left.",
        "The data protection impact assessment, the advice of the data protection officer, and "
        "organisational measures are documents of the hospital's own.",
    )
    yield Answer(
        "WP 216, singling out: can one isolate a person's records?",
        "Section 2 (near copies) and section 3 (who was learnt from) are evidence on it.",
        "What is rare about a person may show although no image is near. Classes with few images "
        "are left out for that reason, which is a precaution and no measurement.",
    )
    yield Answer(
        "WP 216, linkability: can records of one person be linked?",
        "",
        "Not measured. Synthetic images carry no name, no number and no metadata.",
    )
    yield Answer(
        "WP 216, inference: can attributes of a person be inferred?",
        f"Membership in the training data is one such attribute. {tried}",
        "Other attributes were not attacked. That a buffer shows what a disease looks like is its "
        "purpose, and tells of nobody in particular.",
    )
    if claimed := dossier["generator"].get("gan-epsilon"):
        bound = attacked.get("bound")
        proven = (
            f"The attacks prove that ε is no less than {bound['audited']:.3g}, which does not "
            "contradict it."
            if bound
            else "No attack could be tried to contradict it."
        )
        yield Answer(
            "Is the claimed guarantee (differential privacy) plausible?",
            f"It claims ε = {claimed:.3g} at δ = {dossier['generator']['gan-delta']:.3g}. {proven}",
            "An attack can refute a claim and cannot prove one; it counts each image as a case of "
            "its own. What proves it is the mechanism's analysis (docs/privacy/guarantee.md).",
        )
    yield Answer(
        "Legal basis, necessity, proportionality, information of patients, their rights, "
        "transfers to third countries",
        "",
        "No figure speaks to these. They are for the controller and its data protection officer.",
    )
