"""What may leave a hospital, and what is checked before it does."""
