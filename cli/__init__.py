"""The command `fedhandoff`: it reads arguments and calls the other packages."""

import atexit
import gc
import sys
from collections.abc import Sequence

INTERRUPTED = 130  # the status after Ctrl-C, as of a shell


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command, and exit with its status.

    The status is 0 if the command has done its work, 1 if the result is negative (a run that
    failed, a red card), 2 if an argument or a file cannot be used, and 130 after Ctrl-C.

    Args:
        arguments: The words of the command line; None = those of this process.
    """
    # Otherwise Python frees all objects, one by one, before it ends. For --help this took a quarter
    # of the time.
    atexit.register(gc.freeze)
    try:
        from cli.entry import run  # its imports take a third of a second, in which Ctrl-C may come

        status = run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        print("fedhandoff: interrupted by Ctrl-C.", file=sys.stderr)
        status = INTERRUPTED
    sys.exit(status)
