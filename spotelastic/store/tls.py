"""Reads the certificate options of `--rdzv-conf` for an etcd that speaks TLS, as torch names them.

`protocol=https,cacert=FILE,cert=FILE,key=FILE` give the authority that signed the members'
certificates (default: the public ones), and this client's own certificate, where members ask for
one. `daemon_tls=true` uses them between checkpoint daemons as well.
"""

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from spotelastic.certificates import AUTHORITY_LIFE, MEMBER_NAME, Subject, issue, make_authority
from spotelastic.clock import wall
from spotelastic.errors import UsageError

if TYPE_CHECKING:
    import ssl

FILES = ("cacert", "cert", "key")
"""Names of the options that are files."""

HERE = ("127.0.0.1", "::1", "localhost")
"""Hosts from which calls within a machine come."""

Pem = tuple[bytes | None, bytes | None, bytes | None]
"""Content of an authority, a key and a certificate; None for what is left out."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The PEM files of a client, or of a member."""

    cacert: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def __str__(self) -> str:
        """Return the options that ask for these files."""
        named = ((name, getattr(self, name)) for name in FILES)
        return ",".join(["protocol=https", *(f"{name}={file}" for name, file in named if file)])

    def read(self) -> Pem:
        """Return what the files contain now.

        Raises `OSError`, also for a file that is just being written: gRPC ends its process where a
        certificate or a key is empty.
        """
        authority, key, certificate = (
            _whole(file) if file else None for file in (self.cacert, self.key, self.cert)
        )
        return authority, key, certificate

    def context(self) -> "ssl.SSLContext":
        """Return the TLS context of a client. Raises `ssl.SSLError` where the files do not fit."""
        import ssl  # An agent without TLS need not load this.

        context = ssl.create_default_context(cafile=self.cacert)
        if self.cert is not None:
            context.load_cert_chain(self.cert, self.key)
        return context

    def try_both_ways(self) -> None:
        """Make a handshake with itself, in memory. Raises `ssl.SSLError`.

        This shows whether a node with these files accepts another node with a certificate of the
        same authority, whatever its name.
        """
        import ssl

        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_verify_locations(self.cacert)
        server.verify_mode = ssl.CERT_REQUIRED
        assert self.cert is not None
        server.load_cert_chain(self.cert, self.key)
        client = self.context()
        client.check_hostname = False
        called = server.wrap_bio(there, back, server_side=True)
        for end in (client.wrap_bio(back, there), called) * 2:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()


def make_files(folder: Path, hosts: Collection[str] = ()) -> TlsFiles:
    """Make the files of an etcd on this machine, whose clients show the same certificate.

    Nobody else can read the folder. `hosts` are names of the machine besides the loopback ones.
    """
    now = datetime.fromtimestamp(wall(), UTC)
    subject = Subject(MEMBER_NAME, tuple(dict.fromkeys((*HERE, *hosts))))
    issue(make_authority("run", now), subject, now, AUTHORITY_LIFE).write(folder)
    return files_in(folder)


def files_in(folder: Path) -> TlsFiles:
    """Return the files that `make_files` has made."""
    return TlsFiles(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")


def tls_of(conf: Mapping[str, str], *, wanted: bool) -> TlsFiles | None:
    """Return the files that `--rdzv-conf` names; None without TLS.

    Raises `UsageError` with the option and its value.
    """
    given = {name: conf[name] for name in FILES if conf.get(name)}
    if not wanted:
        for name, file in given.items():
            raise UsageError(f"--rdzv-conf {name}={file}: add protocol=https")
        return None
    for name, file in given.items():
        _check(f"--rdzv-conf {name}={file}", Path(file))
    if ("cert" in given) != ("key" in given):
        (name,) = {"cert", "key"} & set(given)
        raise UsageError(f"--rdzv-conf {name}={given[name]}: cert and key belong together")
    # Paths are made absolute, because members that we start run in another folder.
    tls = TlsFiles(**{name: Path(file).absolute() for name, file in given.items()})
    try:
        tls.context()
    except OSError as error:
        raise UsageError(f"--rdzv-conf {tls}: {_reason(error)}") from error
    return tls


def daemon_tls_of(conf: Mapping[str, str], tls: TlsFiles | None) -> TlsFiles | None:
    """Return the files for TLS between checkpoint daemons; None unless `daemon_tls` is set.

    It has to be set, because a certificate for etcd is often valid for clients only. Raises
    `UsageError`.
    """
    told = conf.get("daemon_tls", "")
    if told.lower() in ("", "0", "false", "no"):
        return None
    where = f"--rdzv-conf daemon_tls={told}"
    if told.lower() not in ("1", "true", "yes"):
        raise UsageError(f"{where}: give true or false")
    if tls is None or None in (tls.cacert, tls.cert, tls.key):
        raise UsageError(f"{where}: nodes need cacert, cert and key for it, and protocol=https")
    try:
        tls.try_both_ways()
    except OSError as error:
        raise UsageError(
            f"{where}: {tls.cert} is not a certificate of {tls.cacert} for both servers and "
            f"clients: {_reason(error)}"
        ) from error
    return tls


def _whole(file: Path) -> bytes:
    data = file.read_bytes()
    if b"-----END " not in data:
        raise OSError(f"{file} is not a whole PEM file")
    return data


def _reason(error: OSError) -> str:
    told = getattr(error, "verify_message", None) or getattr(error, "reason", None) or str(error)
    return str(told).replace("_", " ").lower()


def _check(where: str, file: Path) -> None:
    try:
        if b"-----BEGIN " not in file.read_bytes():
            raise UsageError(f"{where}: not a PEM file")
    except OSError as error:
        raise UsageError(f"{where}: {error.strerror or error}") from error
