"""The records that may leave a hospital, and the checks before they leave."""
