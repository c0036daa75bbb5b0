"""The post office: the ServerApp, and the only code that writes results."""
