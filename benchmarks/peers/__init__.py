"""The same work in this app and in other frameworks."""
