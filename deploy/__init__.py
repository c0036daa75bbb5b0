"""The commands of a consortium: make certificates and keys, start server and hospitals, run."""
