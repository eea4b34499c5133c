"""Makes TLS contexts for daemons that authenticate each other, from PEM files that may be replaced.

Files that were replaced are read again at the next connection.
"""

import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from spotelastic_checkpoints.errors import CheckpointsError


@dataclass(frozen=True, slots=True)
class Contexts:
    """The TLS contexts of one node, for answering other daemons and for calling them."""

    server: ssl.SSLContext
    client: ssl.SSLContext


class PeerTls:
    """The certificate files of a node, and which other nodes it accepts.

    Accepts a certificate of the authority `cacert` whose common name is `name`, or any where `name`
    is empty. Addresses are not compared: nodes get theirs after their certificate. Raises
    `CheckpointsError` when the files cannot be used.
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
        """Return contexts made from the current files.

        While the files do not fit together, because one was replaced before the other, the last
        good contexts are returned.
        """
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
        # A resumed session would outlive the certificate that it was begun with, so there are no
        # tickets.
        server.num_tickets = 0
        return Contexts(server, self._context(ssl.PROTOCOL_TLS_CLIENT))

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(self.cacert)
        # The callable refuses a key with a password, which OpenSSL would ask the terminal for.
        context.load_cert_chain(self.cert, self.key, password=bytes)
        return context


def reason(error: ssl.SSLError) -> str:
    """Return an error of TLS in words; of an alert just its name."""
    return (error.reason or str(error)).rpartition("ALERT_")[2].replace("_", " ").lower()


def refusal(error: ssl.SSLError, tls: PeerTls) -> str:
    """Return why there is no connection, in words that help to change it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate: {error.verify_message} (by {tls.cacert})"
    if "ALERT" in (error.reason or ""):
        return f"it does not accept this node's certificate {tls.cert}: {reason(error)}"
    return f"it does not speak TLS 1.3 ({reason(error)}): has it been given certificates?"
