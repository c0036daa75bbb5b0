"""The protocol: what travels, and to whom. The methods are listed in strategies/registry.py.

Nothing is imported here: a hospital needs `parcel` and `settings` alone, and in a deployment each
message finds it in a fresh process.
"""
