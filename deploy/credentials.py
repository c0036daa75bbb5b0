"""Certificates for the server, and a key for each hospital.

A hospital checks the server's certificate with the certificate of the consortium's own authority.
The server checks a hospital by its registered public key. The files have the usual formats: X.509
certificates in PEM, and keys in the format of `ssh-keygen -t ecdsa -b 384`.
"""

import inspect
import ipaddress
import re
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from deploy.errors import DeployError
from strategies.protocol.files import (
    FileError,
    cure_of,
    make_private,
    read_bytes,
    read_secret,
    reason_of,
    write_new,
)
from strategies.protocol.names import check_name

YEARS = 10  # most years for which a certificate is valid
HERE = ("localhost", "127.0.0.1")  # the server's names in the operator's own commands
# A signer of certificates: its name, key and last day
Issuer = tuple[x509.Name, ec.EllipticCurvePrivateKey, datetime]


def make_authority(folder: Path, names: Sequence[str]) -> None:
    """Make `ca.crt` and `ca.key`, and with them `server.crt` and `server.key`.

    An existing authority is kept, so that a server can get a new certificate. A key without its
    certificate, as a killed command leaves it, gets one.

    Hospitals reach the server under `names`: host names and IP addresses.

    Raises:
        DeployError: A name is not valid, or a certificate or key is in the way, or damaged.
    """
    alternatives = [_alternative(name) for name in dict.fromkeys((*names, *HERE))]
    server = folder / "server"
    if (certificate := server.with_suffix(".crt")).exists():
        raise DeployError(
            f"{certificate} already exists and is not overwritten: others may rely on it. Move it "
            "away, or choose another folder."
        )
    _issue(
        server,
        names[0],
        _authority(folder),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.SubjectAlternativeName(alternatives), False),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (_usage(digital_signature=True), True),
    )


def make_key(folder: Path, hospital: str) -> str:
    """Make a hospital's `<name>.key`, which never leaves the hospital, and its `<name>.pub`.

    An existing private key is kept. Returns the public key, as the line of `<name>.pub` begins.

    Raises:
        DeployError: `check_key` refuses the keys that are there.
        ValueError: The name is not valid.
    """
    check_name(hospital)
    private, public = folder / f"{hospital}.key", folder / f"{hospital}.pub"
    if private.exists() or public.exists():
        key = check_key(private)
    else:
        key = ec.generate_private_key(ec.SECP384R1())
        _write(private, _private(key, serialization.PrivateFormat.OpenSSH), 0o600)
    line = _public_line(key)
    if not public.exists():  # it is new, or an earlier command was killed
        _write(public, line + f" {hospital}\n".encode(), 0o644)
    return line.decode()


def check_key(private: Path) -> ec.EllipticCurvePrivateKey:
    """A hospital's private key, in a file that Flower can read, too.

    Raises:
        DeployError: The file cannot be read, or holds another kind of key; or there is a public key
            beside it that is not its own, as after an exchange of files.
    """
    cure = (
        "move it and its .pub away, make a new one with `fedhandoff hospital key`, and have it "
        "registered"
    )
    key = _read_key(private, serialization.load_ssh_private_key, cure)
    public = private.with_suffix(".pub")
    with suppress(FileNotFoundError):
        if read_bytes(public).split()[:2] != _public_line(key).split():
            raise DeployError(
                f"{public} is not the public key of {private}. If {private.name} is another "
                "hospital's, or an old one, give this hospital's. Else move the .pub away: "
                "`fedhandoff hospital key` makes it again."
            )
    return key


def _public_line(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The public half of a key, as the line of a .pub begins."""
    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return key.public_key().public_bytes(*form)


def _read_key(
    path: Path, load: Callable[[bytes, None], object], cure: str
) -> ec.EllipticCurvePrivateKey:
    try:
        key = load(read_secret(path), None)
    except FileError as error:
        raise DeployError(str(error)) from error
    except (OSError, TypeError, ValueError, UnsupportedAlgorithm) as error:  # TypeError: a password
        cure = cure_of(error, f"get a backup of it, or {cure}")
        raise DeployError(
            f"{path} cannot be read as a key ({reason_of(error)}): {cure}."
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise DeployError(f"{path} is a key of another kind, not an elliptic curve's: {cure}.")
    return key


def check_server_files(folder: Path, host: str) -> None:
    """Raise a `DeployError` if a server's certificates and key do not serve for `host`.

    They are tried in a handshake, as of a command.
    """
    for file in ("ca.crt", "server.crt"):
        end_of(folder / file)
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # Without a password OpenSSL would ask for one in the terminal.
        context.load_cert_chain(folder / "server.crt", folder / "server.key", lambda: "-")
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        server = context.wrap_bio(there, back, server_side=True)
        trusting = ssl.create_default_context(cafile=folder / "ca.crt")
        client = trusting.wrap_bio(back, there, server_hostname=host)
        for end in (client, server, client):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    except OSError as error:
        reason = getattr(error, "verify_message", "") or reason_of(error).partition(" (_ssl")[0]
        cure = cure_of(
            error,
            "server.key must be its key, without a password, and ca.crt must be the certificate of "
            f"its authority. It must be valid for {host} (docs/deployment.md, step 1)",
            "server.key",
        )
        raise DeployError(
            f"The server's certificate in {folder} cannot be used ({reason}): {cure}."
        ) from error


def end_of(certificate: Path) -> datetime:
    """The end of a certificate's validity.

    Raises:
        DeployError: The certificate cannot be read, has expired, or is not valid yet.
    """
    return _read_certificate(certificate).not_valid_after_utc


def _read_certificate(certificate: Path) -> x509.Certificate:
    try:
        read, *_ = x509.load_pem_x509_certificates(read_bytes(certificate))  # OpenSSL reads all
    except (OSError, ValueError, x509.InvalidVersion) as error:
        reason = "it is not in PEM" if isinstance(error, ValueError) else reason_of(error)
        cure = cure_of(
            error,
            "get it from the server's operator, or make it with `fedhandoff server authority`",
        )
        raise DeployError(
            f"{certificate} cannot be read as a certificate ({reason}): {cure}."
        ) from error
    now, first, last = datetime.now(UTC), read.not_valid_before_utc, read.not_valid_after_utc
    if not first <= now <= last:
        when = f"is not valid before {first:%Y-%m-%d %H:%M}" if now < first else "has expired"
        raise DeployError(
            f"The certificate {certificate} {when}; it is valid until {last:%Y-%m-%d %H:%M} UTC, "
            f"and this machine's clock shows {now:%Y-%m-%d %H:%M}. Set the clock if it is wrong; "
            "else the operator makes a new certificate (docs/deployment.md, step 1)."
        )
    return read


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        # The last part of a host name is no number: 192.0.2.700 is an address with an error.
        if re.fullmatch(r"(?!-|(.*\.)?\d+$)[\w*-]{1,63}(\.[\w-]{1,63})*", name, re.ASCII):
            return x509.DNSName(name)
    raise DeployError(
        f"'{name}' is neither a host name nor an IP address: give the server's name alone, such as "
        "fl.example.org, without port and https://."
    )


def _authority(folder: Path) -> Issuer:
    """The authority in a folder; made if it does not exist."""
    certificate, key = folder / "ca.crt", folder / "ca.key"
    if certificate.exists():
        cure = "make the server's certificate with your own program"
        private = _read_key(key, serialization.load_pem_private_key, cure)
        read = _read_certificate(certificate)
        if read.public_key() != private.public_key():
            raise DeployError(f"{certificate} is not the certificate of {key}: get both again.")
        return read.subject, private, read.not_valid_after_utc
    return _issue(
        folder / "ca",
        "fedhandoff authority",
        None,
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (_usage(key_cert_sign=True, crl_sign=True), True),
    )


def _issue(
    path: Path, common: str, issuer: Issuer | None, *extensions: tuple[x509.ExtensionType, bool]
) -> Issuer:
    """Make a certificate, `<path>.crt`, and its key, `<path>.key`, unless the key is there.

    The certificate ends no later than that of its issuer. Without an issuer the key signs itself.
    The flag beside an extension marks a critical one. Returns the signer with this certificate.
    """
    file, now = path.with_suffix(".key"), datetime.now(UTC)
    if file.exists():  # of a command that was killed before it wrote the certificate
        key = _read_key(file, serialization.load_pem_private_key, "move it away")
    else:
        key = ec.generate_private_key(ec.SECP384R1())
        _write(file, _private(key, serialization.PrivateFormat.PKCS8), 0o600)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])
    end = now + timedelta(days=365 * YEARS)
    signer, signing_key, last = issuer or (name, key, end)
    signer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key())
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(signer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks differ
        .not_valid_after(min(end, last))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(signer_id, critical=False)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    certificate = builder.sign(signing_key, hashes.SHA384())
    _write(path.with_suffix(".crt"), certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    return name, key, end


def _usage(**allowed: bool) -> x509.KeyUsage:
    uses = inspect.signature(x509.KeyUsage).parameters  # all of them are required
    return x509.KeyUsage(**{**dict.fromkeys(uses, False), **allowed})


def _private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write a new file, which is created with its mode."""
    make_private(path.parent)
    write_new(path, content, mode)
