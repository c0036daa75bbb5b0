"""Whether embeddings may leave a hospital."""

import logging
from collections.abc import Mapping

from client_app.policy import Policy


def allowed(policy: Policy | None, kind: str, figures: Mapping[str, float]) -> bool:
    """Whether embeddings may leave; if not, the hospital's own log names the rule and the value.

    Args:
        policy: The hospital's; None in a simulation, where all may.
        kind: `sampled`, `stats` or `ebr`.
        figures: Of their audit.
    """
    for ruling in policy.embeddings.judge(kind, figures) if policy else ():
        if not ruling.holds:
            logging.getLogger("flwr").error(
                "The embeddings stay here: %s allows %s, and this is %s.",
                *(ruling.rule, ruling.allowed, ruling.asked),
            )
            return False
    return True
