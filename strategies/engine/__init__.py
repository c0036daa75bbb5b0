"""What all methods share: the loop, the state that it moves, and the parts of a run."""
