"""Models, learners, the training loop and evaluation, on tensors. No patient files, no messages."""
