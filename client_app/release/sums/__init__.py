"""Sums of features: those that leave a hospital, and its visits of a ring (strategies/sums.py)."""
