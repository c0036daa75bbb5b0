"""Audits: how much does an object reveal that is about to leave a hospital?

Each audit plays an attacker who has the object, and measures how much the attacker learns about the
images behind it. Images outside of the training set show how much chance achieves. All audits write
the same report (report.py).

    copies.py       is a synthetic image a changed training image?     (search, dresses, ranks)
                    the same for synthetic features                    (feature_search)
    buffer.py       do synthetic images reveal the training images of the generator?
    class_means.py  do synthetic features reveal the images that they were drawn from?
    model.py        does a model reveal its training images?
    embeddings.py   do embeddings reveal their images, and their content?   (decoders)
    sums.py         do sums of features reveal their images?
    membership.py   the success of an attack, beside a control
    epsilon.py      the lower bound on ε that an attack proves

No hospital is known here: its store, its policy and its settings are in client_app/release.
"""

LEAST = 4  # fewest references, and fewest synthetic images, for an attack on a buffer
