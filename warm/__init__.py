"""Warm processes, which answer messages by this app and stay between messages.

A deployed hospital starts one (warm/resident.py), because Flower starts a new process for each
message. A simulation starts several (warm/workers.py), which its hospitals share.
"""
