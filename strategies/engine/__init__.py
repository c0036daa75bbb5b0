"""The code that all methods share: the loop, the state of a run, and the messages to hospitals."""
