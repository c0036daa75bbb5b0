"""The guard around every handler: it turns errors into answers, and blocks undeclared records.

Without the guard, the hospital's SuperNode would wait for ever if a handler raises or returns
nothing, or if the process is terminated (SIGTERM) before its answer.
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

from client_app.authority.ledger import OwnLedger, open_ledger
from client_app.authority.node_config import OwnError, is_simulated, own_config
from client_app.authority.policy import PolicyError
from client_app.errors import LEAVES, failure_of, line_of
from strategies.protocol.may_leave import Failed, Failure, check_answer
from strategies.protocol.redaction import redact
from warm.process import Handed

PATH = re.compile(
    r"(?<![^\s'\"(:=,\[])(?!(?<=[a-z]:)//)~?/[^\s'\"),;:]+"
)  # an absolute path, no URL
# Errors of a disk that is full or read-only, or of folders of another user.
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
# Of an error of torch that has no type of its own: on a CPU, and on a GPU.
MEMORY = re.compile("can't allocate memory|not enough memory|out of memory")


class Terminated(BaseException):
    """The process got SIGTERM. No handler's `except Exception` catches this."""


def guard(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Answer every message, block undeclared records, and note the others (a Flower mod).

    The process that Flower started checks and notes the answers of a resident process, before they
    leave the hospital.
    """
    try:
        with _sigterm_raises():
            ledger = open_ledger(message, context, own_config(context))
            answer = _answer(message, context, call_next, ledger)
            if ledger:
                ledger.note(answer)
            return answer
    except (Exception, Terminated) as error:  # an answer that is not noted does not leave
        return _failure(error, message, context)


def _answer(
    message: Message, context: Context, call_next: ClientAppCallable, ledger: OwnLedger | None
) -> Message:
    """The answer, which leaves if it can be noted."""
    try:
        simulated = is_simulated(own_config(context))
        if not simulated:
            os.umask(0o077)  # no other user of the machine can read the hospital's files
        if ledger:
            ledger.check()
        answer = call_next(message, context)
        if answer.metadata.reply_to_message_id != message.metadata.message_id:
            raise TypeError("A handler returned a message that is not an answer.")
        if not answer.has_error() and (simulated or not isinstance(context, Handed)):
            check_answer(message.metadata.message_type, answer.content, message.content)
        return answer
    except (Exception, Terminated) as error:
        return _failure(error, message, context)


def _failure(error: Exception | Terminated, message: Message, context: Context) -> Message:
    """The answer to a message that failed; details go to the hospital's log alone."""
    log = logging.getLogger("flwr")
    if isinstance(error, Exception) and isinstance(error, tuple(LEAVES)):
        refusal = OwnError("files", line_of(error)) if _names_own(str(error), context) else error
        own = line_of(refusal)
        # In a simulation the server logs the other texts on the same terminal.
        if own != str(refusal) or not is_simulated(own_config(context)):
            log.error(own)
        rule = error.explain() if isinstance(error, PolicyError) else ""
        return Message(Failed(failure_of(error), redact(str(refusal)), rule), reply_to=message)
    reason = type(error).__name__
    if isinstance(error, OSError) and error.errno in DISK:
        reason = f"The hospital cannot write to its disk or folders: {os.strerror(error.errno)}"
        log.error(
            "%s (%s). Free space, or choose another store in hospital.toml.", reason, error.filename
        )
    elif isinstance(error, MemoryError) or MEMORY.search(str(error)):
        reason = "Memory ran out at the hospital: choose a smaller image-size, model or batch-size"
        first = str(error).partition("\n")[0]
        log.error("%s, or give the hospital more memory (%s).", reason, first)
    else:
        log.exception("The hospital failed at %s", message.metadata.message_type)
    reason += "; the hospital's own log has the details."
    return Message(Failed(Failure.CRASHED, reason), reply_to=message)


def _names_own(text: str, context: Context) -> bool:
    """Whether a text names a path or a data set of the hospital that the run does not name."""
    config = own_config(context)
    own = [str(value) for value in config.values() if os.sep in str(value)]
    own += filter(None, [str(config.get("dataset", "")).partition(":")[2]])
    paths = [*PATH.findall(text), *(path for path in own if path in text)]
    asked = " ".join(map(str, context.run_config.values()))
    return not is_simulated(config) and any(path not in asked for path in paths)


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only it can set handlers
        yield
        return

    def end(number: int, frame: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
