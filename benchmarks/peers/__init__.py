"""The same work in this app and in what a user would pick instead."""
