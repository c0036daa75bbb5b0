"""What something gives away that is about to leave a hospital.

Each audit plays somebody who has it, and asks what they learn of the images behind it. Images that
nothing was learnt from say what chance tells. All write the same report (report.py).

    copies.py       is a synthetic image a training image in another dress? (search, dresses, ranks)
    buffer.py       do synthetic images tell which images were learnt from?
    model.py        does a model tell which images it was trained on?
    embeddings.py   do embeddings tell whose they are, and what the images show?   (decoders)
    membership.py   what the scores of an attack are worth, beside a control
    epsilon.py      what an attack proves of a guarantee

Nothing here knows a hospital: its store, its policy and its settings are in client_app/release.
"""
