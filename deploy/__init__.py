"""What a consortium starts: certificates and keys, the SuperLink, the SuperNodes."""
