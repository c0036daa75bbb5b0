"""The dossier as a page, for somebody who knows law and not code.

Every text reaches it through `pages.page`, which escapes it.
"""

import json
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from client_app.release.dossier.law import answers
from pages.page import render
from pages.pictures import named_strip
from pages.release_view import attack_checks, release_checks

Json = Mapping[str, Any]

MEASURES = {
    "auc": "how often a training image looks more like one than another image does",
    "tpr": "training images that are told, when at most 1 in 100 others is taken for one",
}
ATTACKS = {
    "nearest neighbour": "An image is taken for a training image if a synthetic image is nearer to "
    "it than the real images that the attacker has, in any mirroring or turn.",
    "density": "An image is taken for a training image if synthetic images are denser around it "
    "than the real images that the attacker has (DOMIAS).",
    "shadow generators": "The attacker trains generative models of its own, with and without the "
    "image, and compares how near their images come (LiRA). It has all other images.",
}


def page(dossier: Json, digest: str, signer: str) -> str:
    """The page.

    Args:
        dossier: What dossier.json says.
        digest: SHA-256 of dossier.json.
        signer: The public key of who has signed it; empty if nobody has.
    """
    attacked = dossier["attacked"]
    trials = attacked.get("trials", ())
    pictures = dossier["leaves"]["pictures"].items()
    return render(
        "dossier",
        f"Release dossier of {dossier['hospital']}",
        dossier=dossier,
        digest=digest,
        signer=signer,
        verdicts=[{"judgement": each, "text": text} for each, text in _summary(dossier)],
        colours="grey" if dossier["leaves"]["shape"][0] == 1 else "colour",
        strips_of_classes=[named_strip(name, b64decode(png)) for name, png in pictures],
        checked=release_checks({**dossier["generator"], **dossier["checked"]}, dossier["settings"]),
        attacks=[f"{each['attack']}: {ATTACKS[each['attack']]}" for each in trials],
        trials=[*_rows(trials)],
        decisive=attack_checks(attacked),
        legal=[
            [each.question, each.speaks or "Nothing in this dossier.", each.silent]
            for each in answers(dossier)
        ],
        policy=json.dumps(dossier["policy"], indent=1),
        settings=[[name, str(value)] for name, value in dossier["settings"]["release"].items()],
    )


def _summary(dossier: Json) -> Iterator[tuple[str, str]]:
    leaves, attacked = dossier["leaves"], dossier["attacked"]
    yield (
        "note",
        f"{leaves['images']} synthetic images leave. No real image, and no name, number or date of "
        "a patient, is among what this dossier is about.",
    )
    yield "good", "None of them is nearer to a training image than the limits allow (section 2)."
    match attacked.get("verdict"):
        case "passed":
            yield (
                "good",
                "Attacks that ask who was among the training images told less than the limit. They "
                f"notice if {attacked['noticed']:.0%} of the images are near-"
                "copies; of fewer, only section 2 speaks (section 3).",
            )
        case "too small to tell":
            yield (
                "open",
                "Whether the images tell who was among the training images cannot be said: the "
                "hospital has too few images to test that (section 3).",
            )
        case _:
            yield "open", "Nobody attacked the images: the settings ask for no attack (section 3)."
    guarantee = "gan-epsilon" in dossier["generator"]
    yield (
        ("note", "A guarantee of differential privacy is claimed (section 4).")
        if guarantee
        else ("note", "No guarantee in the sense of differential privacy is claimed.")
    )


def _rows(trials: Sequence[Json]) -> Iterator[list[object]]:
    for each in trials:
        worth = each["worth"]
        for figure, words in MEASURES.items():
            yield [
                each["attack"],
                words,
                _interval(worth["attack"][figure]),
                _interval(worth[f"control_{figure}"]),
            ]


def _interval(told: Json) -> str:
    return f"{told['value']:.3f} ({told['low']:.3f} to {told['high']:.3f})"
