"""The command `fedhandoff`: it reads arguments and calls the other packages."""

import atexit
import gc
import signal
import sys
from collections.abc import Sequence
from types import FrameType

INTERRUPTED = 130  # the status after Ctrl-C, as of a shell
IMPORT = "<frozen importlib._bootstrap>"  # the file of Python's own import, in a stack
SOON = 0.05  # s


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
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as by nohup
        for number in (signal.SIGINT, signal.SIGALRM):
            signal.signal(number, _interrupt)
    try:
        from cli.entry import run  # its imports take a third of a second, in which Ctrl-C may come

        status = run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        print("fedhandoff: interrupted by Ctrl-C.", file=sys.stderr)
        status = INTERRUPTED
    sys.exit(status)


def _interrupt(_: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, in an import only after its end: C++ code of torch would abort."""
    while frame:
        if frame.f_code.co_filename == IMPORT:
            signal.setitimer(signal.ITIMER_REAL, SOON)
            return
        frame = frame.f_back
    raise KeyboardInterrupt
