"""The guard around every handler: turns errors into answers, and lets nothing undeclared out.

Without it, a handler that raises or returns nothing would leave the hospital's SuperNode waiting
for ever. So would a process that is asked to end (SIGTERM) before it has answered.
"""

import errno
import logging
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from client_app.authority.node_config import OwnError, is_simulated, own_config
from client_app.authority.policy import PolicyError
from client_app.errors import LEAVES, failure_of
from strategies.protocol.may_leave import Failed, Failure, check_answer
from strategies.protocol.redaction import redacted
from warm.process import Handed

PATH = re.compile(
    r"(?<![^\s'\"(:=,\[])(?!(?<=[a-z]:)//)~?/[^\s'\"),;:]+"
)  # an absolute one, no URL
# Of a disk that is full or read-only, or of folders that are another user's.
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)


class Terminated(BaseException):
    """The process was asked to end. No handler's `except Exception` catches this."""


def guard(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Let nothing undeclared out, and answer every message (a Flower mod).

    What a resident process answers is checked by the process that Flower has started, where it
    leaves the hospital.
    """
    leaves = is_simulated(own_config(context)) or not isinstance(context, Handed)

    def check(message: Message, context: Context) -> Message:
        answer = call_next(message, context)
        if answer.metadata.reply_to_message_id != message.metadata.message_id:
            raise TypeError("A handler returned a message that is not an answer.")
        if leaves and not answer.has_error():
            check_answer(message.metadata.message_type, answer.content, message.content)
        return answer

    return answer_always(message, context, check)


def answer_always(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Answer every message, with a failure if what comes next fails (a Flower mod)."""
    try:
        if not is_simulated(own_config(context)):
            os.umask(0o077)  # what the hospital writes, no other user of its machine reads
        with _sigterm_raises():
            return call_next(message, context)
    except tuple(LEAVES) as error:
        told = OwnError("files", str(error)) if _names_own(str(error), context) else error
        if isinstance(told, PolicyError | OwnError):
            logging.getLogger("flwr").error(told.explain())
        rule = error.explain() if isinstance(error, PolicyError) else ""
        return Message(Failed(failure_of(error), redacted(str(told)), rule), reply_to=message)
    except (Exception, Terminated) as error:
        reason, log = type(error).__name__, logging.getLogger("flwr")
        if isinstance(error, OSError) and error.errno in DISK:
            reason = f"The hospital cannot write to its disk or folders: {os.strerror(error.errno)}"
            log.error("%s (%s). Free space, or give it another store-dir.", reason, error.filename)
        else:
            log.exception("The hospital failed at %s", message.metadata.message_type)
        reason += "; the hospital's own log has the details."
        return Message(Failed(Failure.CRASHED, reason), reply_to=message)


def _names_own(text: str, context: Context) -> bool:
    """Whether a text names a path of the hospital's own: one that the run does not name."""
    config = own_config(context)
    own = [str(value) for value in config.values() if os.sep in str(value)]
    paths = [*PATH.findall(text), *(path for path in own if path in text)]
    asked = " ".join(map(str, context.run_config.values()))
    return not is_simulated(config) and any(path not in asked for path in paths)


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # others cannot set handlers
        yield
        return

    def end(number: int, frame: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
