"""Simulated hospitals in warm processes of this machine, in the place of Flower's engine."""

from server_app.workers.grid import Workers, WorkersGrid

__all__ = ["Workers", "WorkersGrid"]
