"""The public half of a hospital's keys, as text: one that signs, then one that others seal for.

What they are used for is client_app/sealing.py. The server opens nothing with them; it must know a
usable key from another one, because it hands every hospital the keys of all.
"""

import base64

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey


def is_key(text: object) -> bool:
    """Whether a text is two public keys, and nobody but their owner opens what is sealed for them.

    With some points of X25519, those of low order, the secret is the same whoever seals.
    """
    try:
        raw = base64.b64decode(str(text), validate=True)
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(raw[32:]))
    except ValueError:
        return False
    return isinstance(text, str) and len(raw) == 64
