"""`python -m cli` is `fedhandoff` where it is not installed."""

from cli import main

main()
