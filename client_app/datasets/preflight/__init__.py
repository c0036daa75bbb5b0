"""Checks of a hospital's images before training; the results are for the hospital alone."""
