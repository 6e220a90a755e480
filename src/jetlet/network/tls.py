"""Tls: how connections are encrypted where the network between members is not trusted."""

from __future__ import annotations

import ssl
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tls:
    """Files that every member, and the submitting process, can read.

    Both ends show the certificate and check that of the other against ``ca``. Host names are not
    checked: members are known by what they prove in the handshake, not by where they run. TLS comes
    on top of the handshake, never instead of it.
    """

    certificate: str
    """Path of a PEM file with the certificate (chain) of all members."""
    key: str
    """Path of a PEM file with its private key."""
    ca: str
    """Path of a PEM file with the certificates to trust; that of a self-signed one is its own."""

    def server_context(self) -> ssl.SSLContext:
        """For those who listen."""
        return self._context(ssl.PROTOCOL_TLS_SERVER)

    def client_context(self) -> ssl.SSLContext:
        """For those who connect."""
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(self.ca)
        context.load_cert_chain(self.certificate, self.key)
        return context
