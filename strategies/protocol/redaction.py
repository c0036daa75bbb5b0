"""Removes passwords and tokens from texts: the user in a URL, and values like tokens in its query.

A setting with a password or token is refused (`settings.Settings.parse`), so no file of a run has
one. Texts of libraries may quote one, for instance from a URL in an environment variable.
"""

import re

# A server chooses the texts, of any length: each pattern reads a text once.
_WORD = re.compile(r"\S+")
_QUERY = re.compile(
    r"([?&;#](?=[\w.-]*(?:token|secret|pass|pwd|key|sig|auth|credential|jwt))[\w.-]+=)[^\s&;#'\"]+",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """A text with *** for each password or token in it."""
    if "://" in text:
        text = _WORD.sub(_hide_user, text)
    return _QUERY.sub(r"\1***", text) if "=" in text else text


def _hide_user(word: re.Match[str]) -> str:
    """A word with *** for the user in its URL: a password may have any character, also an @."""
    url, at, host = word[0].rpartition("@")
    # In the URL of a file a slash comes first, and its path may have an @.
    begin = re.search("://(?!/).", url)
    return f"{url[: begin.start()]}://***{at}{host}" if begin else word[0]
