"""The one guard around every handler: turns errors into answers, and lets nothing undeclared out.

A handler that raises, or returns nothing, would leave the hospital's SuperNode waiting for good.
"""

import logging

from flwr.app import Context, Error, Message
from flwr.clientapp.typing import ClientAppCallable

from client_app.errors import LEAVES
from strategies.parcel import Failure, check_answer


def guard(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Answer every message, if need be with a failure (a Flower mod)."""
    try:
        answer = call_next(message, context)
        if answer.metadata.reply_to_message_id != message.metadata.message_id:
            raise TypeError("A handler gave a message that is no answer.")
        check_answer(message.metadata.message_type, answer.content)
        return answer
    except tuple(LEAVES) as error:
        failure = next(code for kind, code in LEAVES.items() if isinstance(error, kind))
        return Message(Error(failure, str(error)), reply_to=message)
    except Exception as error:
        logging.getLogger("flwr").exception(
            "The hospital failed at %s", message.metadata.message_type
        )
        reason = f"{type(error).__name__}; the hospital's own log has the details."
        return Message(Error(Failure.CRASHED, reason), reply_to=message)
