"""Removes passwords and tokens from texts: the user in a URL, and values like tokens in its query.

A setting with a password or token is refused (`settings.Settings.parse`), so no file of a run has
one. Texts of libraries may quote one, for instance from a URL in an environment variable.
"""

import re

# In the URL of a file a slash comes first, and its path may have an @. A password may have any
# character.
_USER = re.compile(r"(://)[^\s/]\S*@")
_QUERY = re.compile(
    r"([?&;#][\w.-]*(?:token|secret|pass|pwd|key|sig|auth|credential|jwt)[\w.-]*=)[^\s&;#'\"]+",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """A text with *** for each password or token in it."""
    if "://" in text:
        text = _USER.sub(r"\1***@", text)
    return _QUERY.sub(r"\1***", text) if "=" in text else text
