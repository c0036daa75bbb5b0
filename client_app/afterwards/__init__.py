"""After a run: the models that a hospital has at home, and their use."""
