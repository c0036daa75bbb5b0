"""Begins Flower's ClientApp processes at once: copies of one that has imported Flower already.

A SuperNode has each message answered by a program, `flwr-clientapp`, which it finds on the PATH and
which takes a second or two to import Flower. If the PATH begins with deploy/warm, it finds a few
lines there that hand their arguments and output to this process. It forks, and the copy does what
Flower's own program does. The installed program is all of Flower that this relies on.
"""

import os
import signal
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from socket import AF_UNIX, recv_fds, socket
from threading import Thread, get_ident

PROGRAMS = Path(__file__).parent / "warm"
ADDRESS = "FEDHANDOFF_FORKSERVER"  # environment variable: where the process listens


def serve(program: Callable[[], object]) -> None:
    """Run the program in a copy of this process for each that asks, with its arguments."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how the copies have ended
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
    """Be the program, then end."""
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
    """Pass signals on to the thread that runs the program, and end with what has asked for it."""
    while number := caller.recv(1):
        signal.pthread_kill(thread, number[0])  # else its system call would go on
    os._exit(1)


if __name__ == "__main__":
    (script,) = entry_points(group="console_scripts", name="flwr-clientapp")
    serve(script.load())
