"""The check before embeddings leave a hospital (strategies that train at the server)."""
