"""Embeddings of a hospital's images: what leaves of a task, and the check before it does."""
