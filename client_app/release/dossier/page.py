"""The dossier as a page for readers who know law, not code.

Every text reaches the page through `pages.page`, which escapes it.
"""

import json
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from client_app.release.dossier.law import answers
from pages.page import render
from pages.pictures import named_strip
from pages.release_view import attack_checks, noun_of, release_checks, reword
from strategies.protocol.text import setting_text

Json = Mapping[str, Any]

NOTHING = "Nothing in this dossier."

MEASURES = {
    "auc": "how often the attack ranks a training image above another image",
    "tpr": "training images that the attack finds, at 1 false alarm in 100 other images",
}
ATTACKS = {
    "nearest neighbour": "The attack calls an image a training image if a synthetic image is "
    "nearer to it than the attacker's real images. Pictures are also mirrored and turned.",
    "density": "The attack calls an image a training image if synthetic images are denser "
    "around it than the attacker's real images (DOMIAS).",
    "class means": "The attack calls an image a training image if the mean of the synthetic "
    "features of its class is shifted towards it, from the mean of the attacker's real ones.",
    "shadow generators": "The attacker trains its own generative models, with and without the "
    "image, and compares how near their images come to it (LiRA). It has all other images.",
}


def page(dossier: Json, digest: str, signer: str) -> str:
    """The dossier as an HTML page.

    `digest` is the SHA-256 of dossier.json. `signer` is a public key; empty without a signature.
    """
    attacked = dossier["attacked"]
    trials = attacked.get("trials", ())
    pictures = dossier["leaves"]["pictures"].items()
    noun = noun_of(dossier["settings"])
    return render(
        "dossier",
        f"Release dossier of {dossier['hospital']}",
        dossier=dossier,
        digest=digest,
        signer=signer,
        noun=noun,
        verdicts=[
            {"judgement": each, "text": reword(text, noun)} for each, text in _summary(dossier)
        ],
        colours="grey" if dossier["leaves"]["shape"][0] == 1 else "colour",
        strips_of_classes=[named_strip(name, b64decode(png)) for name, png in pictures],
        checked=release_checks({**dossier["generator"], **dossier["checked"]}, dossier["settings"]),
        attacks=[f"{each['attack']}: {reword(ATTACKS[each['attack']], noun)}" for each in trials],
        trials=[[attack, reword(words, noun), *ends] for attack, words, *ends in _rows(trials)],
        decisive=[each.reword(noun) for each in attack_checks(attacked)],
        legal=[
            [each.question, *(reword(text, noun) for text in (each.speaks or NOTHING, each.silent))]
            for each in answers(dossier)
        ],
        policy=json.dumps(dossier["policy"], indent=1),
        settings=[
            [name, setting_text(value)] for name, value in dossier["settings"]["release"].items()
        ],
    )


def _summary(dossier: Json) -> Iterator[tuple[str, str]]:
    leaves, attacked = dossier["leaves"], dossier["attacked"]
    burnt = " Text that is burnt into training images can appear in synthetic images."
    burnt = burnt if noun_of(dossier["settings"]) == "image" else ""
    yield (
        "note",
        f"{leaves['images']} synthetic images leave. The release of this dossier contains no real "
        f"image, and no metadata such as a name, number or date of a patient.{burnt}",
    )
    yield (
        "good",
        "No synthetic image is nearer to a training image than the limits allow (section 2).",
    )
    match attacked.get("verdict"):
        case "passed":
            yield (
                "good",
                "Attacks revealed less about training members than the limit (section 3). They "
                f"notice if {attacked['noticed']:.0%} of the images are near-copies. For a smaller "
                "share, see section 2.",
            )
        case "too small to tell":
            yield (
                "open",
                "It is unknown whether the images reveal training members: the attacks are too "
                "weak here to exclude it (section 3).",
            )
        case _:
            yield "open", "The images were not attacked: the settings ask for none (section 3)."
    guarantee = "gan-epsilon" in dossier["generator"]
    yield (
        ("note", "A guarantee of differential privacy is claimed (section 4).")
        if guarantee
        else ("note", "No guarantee in the sense of differential privacy is claimed.")
    )


def _rows(trials: Sequence[Json]) -> Iterator[list[str]]:
    for each in trials:
        worth = each["worth"]
        for figure, words in MEASURES.items():
            yield [
                each["attack"],
                words,
                _interval_text(worth["attack"][figure]),
                _interval_text(worth[f"control_{figure}"]),
            ]


def _interval_text(figure: Json) -> str:
    return f"{figure['value']:.3f} ({figure['low']:.3f} to {figure['high']:.3f})"
