"""Benchmarks: tables of experiments, and the programs that run them."""
