"""The public half of a hospital's keys, as text: one that signs, then one that others seal for.

client_app/authority/sealing.py uses them. The server opens nothing with them. It must recognise
unusable keys, because it gives every hospital the keys of all.
"""

import base64

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

# The curve of Ed25519: -x² + y² = 1 + D x² y², modulo P (RFC 8032, section 5.1).
P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P


def read_key(text: str) -> tuple[Ed25519PublicKey, X25519PublicKey]:
    """The two public keys of a text; a ValueError if it has none, or one keeps no secret."""
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError:
        raw = b""
    if len(raw) != 64:
        raise ValueError(
            "a key has 88 characters of base64, as `fedhandoff hospital identity` prints it"
        )
    signing = Ed25519PublicKey.from_public_bytes(raw[:32])
    writing = X25519PublicKey.from_public_bytes(raw[32:])
    _check_point(raw[:32])
    X25519PrivateKey.generate().exchange(writing)  # a ValueError for a key of low order
    return signing, writing


def is_key(text: object) -> bool:
    """Whether a value is a text of two usable public keys."""
    try:
        return isinstance(text, str) and bool(read_key(text))
    except ValueError:
        return False


def _check_point(raw: bytes) -> None:
    """Refuse (ValueError) 32 bytes that are no point of Ed25519's curve, or one of small order.

    For a point of small order anybody can sign. Its order divides 8: y is 0, 1 or -1, or the
    doubled point has y = 0. By the curve's equation (RFC 8032, section 5.1) the last case is
    D y⁴ + 2 y² - 1 = 0.
    """
    y = int.from_bytes(raw, "little") % 2**255  # without the sign of x
    small = y * (y**2 - 1) * (D * y**4 + 2 * y**2 - 1) % P == 0
    square = pow((y**2 - 1) * (D * y**2 + 1), (P - 1) // 2, P) == 1  # x² of this y, times a square
    if y >= P or small or not square:
        raise ValueError("not a key that signs")
