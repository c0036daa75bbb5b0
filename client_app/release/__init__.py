"""The records that may leave a hospital, and the checks before they leave.

    buffer/           makes a buffer of synthetic images, checks and attacks it
    model_attack.py   attacks a model after training
    embeddings.py     draws embeddings, and attacks them
    sums/             masks sums of features, and attacks them
    disclosure.py     limits the figures of a model, and adds noise (noise.py; details.py: of each
                      class)
    agreement.py      makes noised counts agree with one another
    dossier/          writes down the released data and the results of the checks
    guard.py          blocks an answer with data that strategies/protocol/may_leave.py does not list

The measures of the attacks are in audit/.
"""
