"""The dossier as a page, for somebody who knows law and not code.

Every text reaches it through `pages.page`, which escapes it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from client_app.release.dossier.law import answers
from pages.page import (
    Marked,
    document,
    folded,
    heading,
    judged,
    listing,
    notice,
    paragraph,
    section,
    table,
    verbatim,
)
from pages.release_view import CHECKS, PASSING, checks_of, remarks_of

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
    title = f"Release dossier of {dossier['hospital']}"
    sections = {
        "1. What leaves": _leaves(dossier),
        "2. How near the images come to patients' images": _checked(dossier),
        "3. What attacks told": _attacked(dossier["attacked"]),
        "4. Which legal questions this speaks to": _law(dossier),
        "5. Fingerprints and signature": _fingerprints(dossier, digest, signer),
        "6. What the hospital allows": _policy(dossier),
    }
    return document(
        title,
        heading(title, 1),
        paragraph(f"Run {dossier['run']}, written {dossier['written']}.", soft=True),
        judged(_summary(dossier)),
        notice(
            "amber",
            paragraph(
                f"This page has exact figures. It is for {dossier['hospital']}'s own eyes, and for "
                "those whom the hospital shows it. It is evidence and no legal advice."
            ),
        ),
        *(section(name, *parts) for name, parts in sections.items()),
        contents=list(sections),
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


def _leaves(dossier: Json) -> Iterator[str]:
    leaves, learnt = dossier["leaves"], dossier["learnt-from"]
    channels, height, width = leaves["shape"]
    colours = "grey" if channels == 1 else "colour"
    yield paragraph(
        f"{leaves['images']} synthetic {colours} images of {width} x {height} pixels, each with "
        "the name of its class. A generative model has drawn them; the model stays at the "
        f"hospital. It has learnt from training images of the hospital, which has "
        f"{learnt['training-images']} of them, and {learnt['test-images']} test images that it has "
        "not learnt from."
    )
    if not learnt["patients-known"]:
        yield paragraph(
            "Which images are of one patient is not known here: a patient may have several, among "
            "the training images and among the test images."
        )
    yield table(["class", "synthetic images"], leaves["classes"].items(), about="What leaves")
    if absent := leaves["left-out"]:
        yield paragraph(
            "Of these classes the hospital has too few training images to learn from, and nothing "
            f"leaves: {', '.join(absent)}."
        )


def _checked(dossier: Json) -> Iterator[str]:
    figures = {**dossier["generator"], **dossier["checked"]}
    yield table(CHECKS, checks_of(figures, dossier["settings"]), about="Check", asks=True)
    yield listing(f"{text[:1].upper()}{text[1:]}" for text in remarks_of(figures))
    yield paragraph(PASSING, soft=True)


def _attacked(attacked: Json) -> Iterator[str]:
    verdict = attacked.get("verdict", "not attacked")
    if verdict == "not attacked":
        yield paragraph(
            "Nothing: no attack was tried. release.max-membership is 1, or the images were not "
            "made by this version."
        )
        return
    if not attacked["trials"]:
        yield paragraph(
            f"With {attacked['members']} training images, and {attacked['others']} that the model "
            "has not learnt from, no attack could be tried."
        )
        yield from _decided(attacked, verdict)
        return
    yield paragraph(
        "The attacker asks of an image: did the generative model learn from it? It was asked of "
        f"{attacked['members']} training images and of {attacked['others']} images that the model "
        f"has not learnt from. The attacker had all {attacked['synthetic']} synthetic images, and "
        f"{attacked['references']} or more further real images of the hospital to compare with."
    )
    yield listing(f"{each['attack']}: {ATTACKS[each['attack']]}" for each in attacked["trials"])
    yield table(
        ["attack", "what it told (95 % interval)", "measured", "where nothing can be told"],
        _rows(attacked["trials"]),
        about="What attacks told",
        asks=True,
    )
    yield paragraph(
        "The last column is the negative control: the same attack on training images alone, "
        "some of which are called others. That is what chance gives: 0.5 for the first figure, "
        "0.01 for the second, and more with few images. What an attack measures beyond it, it "
        "has from the synthetic images.",
        soft=True,
    )
    yield from _decided(attacked, verdict)


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


def _decided(attacked: Json, verdict: str) -> Iterator[str]:
    limit, leak, noticed = attacked["limit"], attacked["leak"], attacked["noticed"]
    if leak:
        yield table(
            ["what decides", "measured (95 % interval)", "limit", ""],
            [
                [
                    "The leak: what the best attack told beyond the negative control, from 0 "
                    "(nothing) to 1 (as much as copies of training images would tell)",
                    _interval(leak),
                    f"upper end at most {limit:g}",
                    Marked("pass", "good")
                    if leak["high"] <= limit
                    else Marked("cannot tell", "warn"),
                ],
                [
                    "The positive control: near-copies that were mixed in on purpose, and noticed",
                    "not even half of the images"
                    if noticed is None
                    else f"{noticed:.0%} of the images",
                    "some must be noticed",
                    Marked("pass", "good")
                    if noticed is not None
                    else Marked("cannot tell", "warn"),
                ],
            ],
            about="What decides",
            asks=True,
        )
    if verdict == "too small to tell":
        yield notice(
            "amber",
            paragraph(
                "Too small to tell: with so few images these attacks cannot exclude a leak above "
                "the limit. That they found none means nothing. The settings and the policy allow "
                "such a release (release.untested)."
            ),
        )


def _law(dossier: Json) -> Iterator[str]:
    yield paragraph(
        "EDPB Opinion 28/2024 asks when an AI model is anonymous: extraction of personal data, and "
        "obtaining them from queries, must both be unlikely to the point of insignificance. "
        "Synthetic images are no model. The same questions are put to them here, with the three "
        "of WP 216."
    )
    rows = [
        [each.question, each.speaks or "Nothing in this dossier.", each.silent]
        for each in answers(dossier)
    ]
    head = ["question", "what speaks to it here", "what is not shown"]
    yield table(head, rows, about="Legal questions", asks=True)


def _fingerprints(dossier: Json, digest: str, signer: str) -> Iterator[str]:
    marks = dossier["fingerprints"]
    rows = [
        ["this dossier (dossier.json)", digest],
        ["the synthetic images and their labels", marks["buffer"]],
        ["the hospital's training images", marks["train-images"]],
        ["its test images", marks["test-images"]],
        ["the code that ran", marks["code"]],
    ]
    yield table(["of what", "SHA-256"], rows, about="Fingerprints")
    yield paragraph(
        "Those of the hospital's own images are shortened, and keyed with a secret of the hospital "
        "in a deployment: they stand on its card, too."
    )
    yield paragraph(
        "The one of this dossier travels with the synthetic images: on the hospital's card, and "
        "inside of what other hospitals get. Whoever has it can tell whether this is the dossier "
        "of what they got."
    )
    if signer:
        yield paragraph(
            "The hospital has signed this dossier. `python -m client_app dossier` checks that, "
            "with the public key that the other hospitals know it by:"
        )
        yield verbatim(signer)
    else:
        yield notice("amber", paragraph("Not signed: a simulation has no keys."))


def _policy(dossier: Json) -> Iterator[str]:
    if dossier["policy"] is None:
        yield paragraph(
            "There is no policy: this is a simulation, in which all hospitals have one owner. The "
            "settings of the release:"
        )
    else:
        yield paragraph("The hospital's policy in force, and the settings of the release:")
        yield folded("The whole policy", verbatim(json.dumps(dossier["policy"], indent=1)))
    rows = [[name, str(value)] for name, value in dossier["settings"]["release"].items()]
    yield table(["release", "setting"], rows, about="Settings of the release")


def _interval(told: Json) -> str:
    return f"{told['value']:.3f} ({told['low']:.3f} to {told['high']:.3f})"
