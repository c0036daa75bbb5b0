"""What may be said of models, from their figures: the one place that judges.

model.py judges a model at a hospital, run.py the models of a run at all hospitals, home.py those
that a hospital has at home, and methods.py methods over their runs. The log, reports, and the
comparison show these sentences as they are. A figure is above another one only if its whole 95 %
interval is. Of figures with noise nothing is said that a hospital's exact page would contradict: no
cause, no count, and of two models only what holds wherever the noise has the difference.
"""
