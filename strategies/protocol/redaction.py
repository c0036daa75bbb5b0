"""Passwords and tokens in texts: the user of a URL, and what its query calls a token or the like.

A setting that holds one is refused (`settings.Settings.parse`), so that no file of a run has it.
Texts of libraries, such as the error of a server that an environment variable names, may quote one.
"""

import re

# A slash comes first in a file's URL, whose path may hold an @. A password may hold any character.
_USER = re.compile(r"(://)[^\s/]\S*@")
_QUERY = re.compile(
    r"([?&;#][\w.-]*(?:token|secret|pass|pwd|key|sig|auth|credential|jwt)[\w.-]*=)[^\s&;#'\"]+",
    re.IGNORECASE,
)


def redacted(text: str) -> str:
    """A text with *** for each password or token in it."""
    if "://" in text:
        text = _USER.sub(r"\1***@", text)
    return _QUERY.sub(r"\1***", text) if "=" in text else text
