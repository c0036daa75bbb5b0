"""Forks Flower's ClientApp processes from one that has already imported Flower.

A SuperNode starts a program for each message, `flwr-clientapp`, which it finds on the PATH. That
program takes a second or two to import Flower. The short script in deploy/programs, which the
SuperNode finds first, hands its arguments and its output to this process. This process forks, and
the copy runs Flower's own program. Of Flower this relies on nothing but the installed program
`flwr-clientapp`. deploy/confined.py sees to it that copies run approved code.
"""

import os
import signal
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from socket import AF_UNIX, recv_fds, socket
from threading import Thread, get_ident

ADDRESS = "FEDHANDOFF_FORKSERVER"  # environment variable: the path of its socket


def serve(program: Callable[[], object]) -> None:
    """Run the program in a copy of this process for each caller, with the caller's arguments."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # copies are not waited for
    address = Path(os.environ[ADDRESS])
    address.unlink(missing_ok=True)
    with socket(AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen()
        while True:
            caller, _ = listener.accept()
            with caller:
                if os.fork() == 0:
                    _run(program, caller)


def _run(program: Callable[[], object], caller: socket) -> None:
    """Run the program in this copy, send its exit status, and end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status = 1
    try:
        arguments, output, _, _ = recv_fds(caller, 2**16, 3)
        for number, given in enumerate(output):
            os.dup2(given, number)
            os.close(given)
        sys.argv = arguments.decode().split("\0")
        Thread(target=_heed, args=(caller, get_ident()), daemon=True).start()
        program()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        caller.send(bytes([status]))
        os._exit(status)


def _heed(caller: socket, thread: int) -> None:
    """Pass the caller's signals to the thread that runs the program; end when the caller ends."""
    while number := caller.recv(1):
        signal.pthread_kill(thread, number[0])  # to interrupt its system call
    os._exit(1)


if __name__ == "__main__":
    (script,) = entry_points(group="console_scripts", name="flwr-clientapp")
    serve(script.load())
