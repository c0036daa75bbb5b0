"""Verdicts on models, from their figures; no other code judges.

model.py judges a model at a hospital, run.py the models of a run at all hospitals, home.py the
models that a hospital has at home, and methods.py methods over their runs. The log, the reports and
the comparison show these sentences unchanged. A figure is called higher than another value only if
its whole 95 % interval is. Verdicts on figures with noise never contradict a hospital's exact page:
they name no cause and no count, and compare two models only as far as the noise allows.
"""
