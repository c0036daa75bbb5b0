"""A hospital. The only package that opens a data file."""
