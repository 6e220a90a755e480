"""Tls: how connections are encrypted where the network between members is not trusted.

``JobConfig(tls=...)`` says what is wanted, :func:`credentials_for` what comes of it at an address.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from jetlet.errors import InvalidArgumentError, MissingDependencyError

if TYPE_CHECKING:
    import ssl

_YEARS = 10
_SKEW = dt.timedelta(days=1)
"""By how much the clock of another host may be behind."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Files with a certificate of your own, read by the submitting process and sent to members.

    Both ends show the certificate and check that of the other against ``ca``. Host names are not
    checked: members are known by what they prove in the handshake, not by where they run. TLS comes
    on top of the handshake, never instead of it.
    """

    certificate: str
    """Path of a PEM file with the certificate (chain) of all members."""
    key: str
    """Path of a PEM file with its private key, which is not encrypted."""
    ca: str
    """Path of a PEM file with the certificates to trust; that of a self-signed one is its own."""

    def read(self) -> Credentials:
        """What is in the files; refused if they do not fit each other."""
        try:
            texts = [Path(each).read_text() for each in (self.certificate, self.key, self.ca)]
            credentials = Credentials(*texts)
            credentials.server_context()
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            raise InvalidArgumentError(f"{self} cannot be used: {error}") from error
        return credentials


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the members of one job encrypt with: PEM texts."""

    certificate: str
    """The certificate (chain) that all of them show."""
    key: str = field(repr=False)
    """The private key of the certificate."""
    ca: str
    """The certificates that they trust."""

    @classmethod
    def made_for_job(cls) -> Self:
        """A new certificate that signs itself, and that nobody trusts but the members of a job."""
        try:
            from cryptography import x509
            from cryptography.hazmat.primitives import hashes, serialization
            from cryptography.hazmat.primitives.asymmetric import ec
        except ImportError as error:
            raise MissingDependencyError(
                "certificates for members are made with 'cryptography', which is not installed: "
                "install jetlet[tls], write JobConfig(tls=Tls(certificate, key, ca)) with "
                "certificates of your own, or JobConfig(tls=False) if nobody else can listen "
                "between the hosts"
            ) from error
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "jetlet job")])
        now = dt.datetime.now(dt.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _SKEW)
            .not_valid_after(now + dt.timedelta(days=365 * _YEARS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(key, hashes.SHA256())
            .public_bytes(serialization.Encoding.PEM)
            .decode()
        )
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode()
        return cls(certificate, private, certificate)

    def server_context(self) -> ssl.SSLContext:
        """For those who listen."""
        return self._context("PROTOCOL_TLS_SERVER")

    def client_context(self) -> ssl.SSLContext:
        """For those who connect."""
        return self._context("PROTOCOL_TLS_CLIENT")

    def _context(self, protocol: str) -> ssl.SSLContext:
        import ssl  # not for everybody who makes a JobConfig

        context = ssl.SSLContext(getattr(ssl, protocol))
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.ca)
        # OpenSSL takes keys from files only; nobody else can read this one, and it is gone at once.
        with tempfile.NamedTemporaryFile("w", prefix="jetlet-", suffix=".pem") as file:
            file.write(f"{self.key}\n{self.certificate}")
            file.flush()
            context.load_cert_chain(file.name)
        return context


def credentials_for(wanted: Tls | bool | None, host: str) -> Credentials | None:
    """What to encrypt with if members meet at ``host``; ``None`` to leave it.

    Unless somebody says otherwise, what leaves this machine is encrypted.
    """
    if isinstance(wanted, Tls):
        return wanted.read()
    if wanted is None:
        wanted = not is_loopback(host)
    return Credentials.made_for_job() if wanted else None


def is_loopback(host: str) -> bool:
    """True if what is sent to that address does not leave this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
