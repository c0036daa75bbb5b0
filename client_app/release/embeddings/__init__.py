"""Embeddings of a hospital's images in a task, and the check before they leave."""
