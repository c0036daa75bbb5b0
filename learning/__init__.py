"""Tensors: models, learners, the one training loop, evaluation. No patient's files, no messages."""
