"""Invitations: how a hospital gets the server's address, and the server the hospital's key.

The operator makes an invitation, a file for one hospital (`fedhandoff server invite`). It has the
server's address and certificate, the hash of the code, and a token. The hospital makes its keys and
an answer with its public key (`fedhandoff hospital join`). The answer has no token, but a code of
authentication (HMAC-SHA-256, RFC 2104) by the token over the name and the key. The operator accepts
the answer (`fedhandoff server accept`). From then on the invitation is for this key alone, so an
interrupted command can be repeated.

A thief of an invitation can have one key registered under the hospital's name, until the hospital's
own answer is accepted. Of two answers the second is refused, so the theft is noticed. The key gives
no data: hospitals seal parcels for their members, and exchange the keys of members elsewhere.
"""

import hashlib
import hmac
import json
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from deploy.credentials import end_of, make_key
from deploy.errors import DeployError
from deploy.own_file import Address, Name, read_own
from deploy.server import APP, read_list, register
from strategies.protocol.code import hash_of
from strategies.protocol.declared import condition, declare, keys_of, pattern, read
from strategies.protocol.files import (
    alone,
    parse_toml,
    read_by_hand,
    read_text,
    reason_of,
    replacing,
    write_whole,
)
from strategies.protocol.names import check_name

INVITATIONS = "invitations.json"  # in the server's folder: open invitations, by hospital
MOST = 2**16  # bytes of an invitation or an answer
TableT = TypeVar("TableT")
Hash = Annotated[str, pattern("[0-9a-f]{64}", "a SHA-256, which has 64 hexadecimal digits")]
Token = Annotated[str, pattern("[A-Za-z0-9_-]{43}", "a token as `server invite` makes it")]
Time = Annotated[str, condition(lambda text: _is_time(text), "a time in UTC")]
Key = Annotated[
    str, pattern("ecdsa-sha2-nistp384 [A-Za-z0-9+/=]+", "a key as `hospital join` makes it")
]


@declare
class Invitation:
    """The keys of an invitation."""

    hospital: Name  # the hospital's name
    server: Address  # host:port of the server
    code: Hash  # the hash of the code that the consortium runs
    ends: Time  # the time until which the operator accepts an answer
    token: Token  # the secret of this invitation
    pem: str  # the certificate of the consortium's authority

    @property
    def certificate(self) -> x509.Certificate:
        """The authority's certificate.

        Raises:
            DeployError: It is none.
        """
        try:
            return x509.load_pem_x509_certificate(self.pem.encode())
        except (ValueError, x509.InvalidVersion) as error:
            raise DeployError(
                f"The invitation has no certificate that can be read ({error}): ask the operator "
                "for another."
            ) from error

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the certificate, which people compare by telephone."""
        return self.certificate.fingerprint(hashes.SHA256()).hex()


@declare
class Answer:
    """The keys of an answer: the hospital's name and public key, and their code by the token."""

    hospital: Name
    key: Key
    mac: Hash


def invite(folder: Path, hospital: str, file: Path, days: int) -> None:
    """Write an invitation; an earlier one for the hospital is no longer accepted.

    After an error the earlier one is as before. The server's folder has the address in its
    server.toml. The invitation is accepted for `days`.

    Raises:
        DeployError: The server has no address, or no valid certificate.
        ValueError: The hospital's name is not valid.
    """
    check_name(hospital)
    address, certificate = read_own(folder, "server.toml").get("address"), folder / "ca.crt"
    if not address or not certificate.is_file():
        raise DeployError(
            f"{folder} has no ca.crt (`fedhandoff server authority` makes it), or no 'address' in "
            "server.toml: write there the host:port under which hospitals reach the server."
        )
    end_of(certificate)  # a damaged one, or one that has expired, is not sent
    ends = (datetime.now(UTC) + timedelta(days=days)).isoformat(timespec="seconds")
    token = secrets.token_urlsafe(32)
    content = {
        **{"hospital": hospital, "server": address, "code": hash_of(APP), "ends": ends},
        **{"token": token, "pem": read_text(certificate)},
    }
    with alone(folder), replacing(file) as draft:
        write_whole(draft, tomli_w.dumps(content, multiline_strings=True), private=True)
        _keep(folder, hospital, {"secret": _secret(token).hex(), "ends": ends})


def read_invitation(file: Path) -> Invitation:
    """Read an invitation, and check that it is for the code of this clone and has not ended.

    Raises:
        DeployError: It cannot be used; the text says why.
    """
    invitation = _read(file, Invitation)
    if invitation.code != hash_of(APP):
        raise DeployError(
            f"{file} is for the code {invitation.code}, and {APP} has {hash_of(APP)}: use a clone "
            "of the consortium's version."
        )
    _check_end(invitation.hospital, invitation.ends)
    return invitation


def write_answer(folder: Path, invitation: Invitation) -> Path:
    """Write the authority's certificate, and a hospital's answer; returns the answer.

    Raises:
        DeployError: The hospital's key cannot be used.
    """
    name = invitation.hospital
    file = folder / f"{name}.answer"
    # This certificate alone: a file of certificates could have more, which would be trusted, too.
    write_whole(folder / "ca.crt", invitation.certificate.public_bytes(Encoding.PEM))
    key = make_key(folder, name)
    mac = _mac(_secret(invitation.token), name, key)
    write_whole(file, tomli_w.dumps({"hospital": name, "key": key, "mac": mac}))
    return file


def accept(folder: Path, file: Path) -> str:
    """Register the key of an answer; returns the hospital's name.

    If the key cannot be registered now, the same answer can be accepted later.

    Raises:
        DeployError: The answer is not that of an open invitation, or the key cannot be registered.
    """
    answer = _read(file, Answer)
    name, now = answer.hospital, datetime.now(UTC).isoformat(timespec="seconds")
    with alone(folder):
        facts = _check(folder, file, answer)
        # Before the key is registered: if this command is interrupted, no other key counts.
        _keep(folder, name, {"accepted": now, **facts, "key": answer.key})
    public_key = folder / f"{name}.pub"
    write_whole(public_key, f"{answer.key} {name}\n")
    register(folder, public_key, name)
    return name


def _check(folder: Path, file: Path, answer: Answer) -> dict[str, str]:
    """What is kept of an answer's invitation, if it is open for this answer."""
    name = answer.hospital
    kept = _invitations(folder).get(name)
    if kept is None:
        raise DeployError(f"{name} has no invitation: make one with `fedhandoff server invite`.")
    if (done := kept.get("accepted")) and kept.get("key") != answer.key:
        raise DeployError(
            f"The invitation of {name} was accepted at {done}, with another key. If {name} did not "
            f"send that answer, a thief has: unregister its node ({folder / 'hospitals.json'}), "
            "and invite again."
        )
    try:
        secret, ends = bytes.fromhex(kept["secret"]), kept["ends"]
        _check_end(name, ends)
    except (KeyError, TypeError, ValueError) as error:
        raise DeployError(f"{folder / INVITATIONS} is damaged: invite {name} again.") from error
    if not hmac.compare_digest(_mac(secret, name, answer.key), answer.mac):
        raise DeployError(
            f"{file} does not answer the newest invitation of {name}: send this invitation to "
            "the hospital. If it has joined with an earlier one, it moves its hospital.toml away, "
            "and joins again."
        )
    return kept


def _secret(token: str) -> bytes:
    """The secret that the server keeps of a token."""
    return hashlib.sha256(b"fedhandoff invitation 1" + token.encode()).digest()


def _mac(secret: bytes, hospital: str, key: str) -> str:
    # No name has a zero, so no other name and key have the same text.
    return hmac.digest(secret, f"{hospital}\0{key}".encode(), "sha256").hex()


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).utcoffset() == timedelta(0)
    except ValueError:
        return False


def _check_end(hospital: str, ends: str) -> None:
    if (now := datetime.now(UTC)) > datetime.fromisoformat(ends):
        raise DeployError(
            f"The invitation of {hospital} has ended at {ends}, and this machine's clock shows "
            f"{now:%Y-%m-%d %H:%M} UTC. Set the clock if it is wrong; else the operator invites "
            f"{hospital} again."
        )


def _invitations(folder: Path) -> dict[str, dict[str, str]]:
    return read_list(folder / INVITATIONS, dict[str, dict[str, str]])


def _keep(folder: Path, hospital: str, facts: dict[str, str]) -> None:
    """Keep the facts of a hospital's invitation; the folder is locked."""
    known = {**_invitations(folder), hospital: facts}
    write_whole(folder / INVITATIONS, json.dumps(known), private=True)


def _read(file: Path, table: type[TableT]) -> TableT:
    """A file of another party, checked."""
    try:
        values: dict[str, Any] = parse_toml(read_by_hand(file, MOST))
    except (OSError, ValueError) as error:
        raise DeployError(f"{file} cannot be read: {reason_of(error)}") from error
    known = {*keys_of(table)}
    if values.keys() != known:
        wrong = ", ".join(sorted(values.keys() ^ known)[:9])
        raise DeployError(f"{file} is not an {table.__name__.lower()}: see its keys {wrong!a}.")
    found, problems = read(values, table)
    if found is None:
        raise DeployError(f"{file}: " + " ".join(problems.values()))
    return found
