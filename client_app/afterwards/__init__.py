"""After a run: the models that a hospital has taken home, and what it does with them."""
