"""The methods (listed in strategies/registry.py), their engine and their protocol.

This file imports nothing. A hospital needs only `parcel` and `settings`, and in a deployment Flower
starts a fresh process for each message.
"""
