"""The messages to hospitals, in words."""

VERBS = {
    "query.live": "say that it is there",
    "query.enrol": "enrol",
    "query.prepare": "prepare",
    "train": "train",
    "train.rewind": "train (rewind)",
    "evaluate": "test",
    "undo": "make a useful model",
}
