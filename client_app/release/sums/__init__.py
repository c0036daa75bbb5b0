"""Sums of features: what leaves a hospital, and its part in a ring (strategies/sums.py)."""
