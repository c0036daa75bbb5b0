"""Warm processes: they run this app, answer one message after the other, and stay between them.

Two things start them: a deployed hospital (resident.py), whose one process outlives those that
Flower starts for each message, and a simulation (workers.py), whose hospitals share several.
"""
