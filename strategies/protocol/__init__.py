"""What travels between hospitals and server, and what both must agree on."""
