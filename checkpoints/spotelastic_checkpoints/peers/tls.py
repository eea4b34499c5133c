"""Mutual TLS between daemons, by PEM files that are read again once they were replaced."""

import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from spotelastic_checkpoints.errors import CheckpointsError


@dataclass(frozen=True, slots=True)
class Contexts:
    """Of one node: what it answers with, and what it calls others with."""

    server: ssl.SSLContext
    client: ssl.SSLContext


class PeerTls:
    """Who has a certificate of the authority `cacert` is let in, if its common name is `name`; any
    is, where that is empty. Addresses are not looked at: nodes get theirs after their certificate.

    Raises `CheckpointsError` when the files cannot be used.
    """

    def __init__(self, cacert: Path, cert: Path, key: Path, name: str = "") -> None:
        self.cacert, self.cert, self.key, self.name = cacert, cert, key, name
        self._lock = threading.Lock()
        try:
            self._read_at = self._stamps()
            self._contexts = self._load()
        except OSError as error:
            why = reason(error) if isinstance(error, ssl.SSLError) else str(error)
            raise CheckpointsError(f"cacert={cacert}, cert={cert}, key={key}: {why}") from error

    def contexts(self) -> Contexts:
        """Of what the files hold now, or last held when they fitted: one is replaced before the
        other."""
        with self._lock, suppress(OSError):
            stamps = self._stamps()
            if stamps != self._read_at:
                self._contexts = self._load()
                self._read_at = stamps
        return self._contexts

    def _stamps(self) -> tuple[tuple[int, int], ...]:
        stats = [path.stat() for path in (self.cacert, self.cert, self.key)]
        return tuple((stat.st_ino, stat.st_mtime_ns) for stat in stats)

    def _load(self) -> Contexts:
        server = self._context(ssl.PROTOCOL_TLS_SERVER)
        # A resumed session would outlive the certificate that it was begun with.
        server.num_tickets = 0
        return Contexts(server, self._context(ssl.PROTOCOL_TLS_CLIENT))

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(self.cacert)
        # A key that wants a password is refused, instead of asking a terminal for it.
        context.load_cert_chain(self.cert, self.key, password=bytes)
        return context


def reason(error: ssl.SSLError) -> str:
    """In words; of an alert just what it says."""
    return (error.reason or str(error)).rpartition("ALERT_")[2].replace("_", " ").lower()


def refusal(error: ssl.SSLError, tls: PeerTls) -> str:
    """Why there is no connection, for whoever can do something about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate: {error.verify_message} (by {tls.cacert})"
    if "ALERT" in (error.reason or ""):
        return f"it does not accept this node's certificate {tls.cert}: {reason(error)}"
    return f"it does not speak TLS 1.3 ({reason(error)}): has it certificates?"
