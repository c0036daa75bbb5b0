"""The records that travel between hospitals and server, and the rules that both share."""
