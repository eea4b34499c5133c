"""Finds out, for an error message, why an endpoint does not answer as etcd 3 does.

gRPC only reports "unavailable" or "too late". This asks once more, as a plain client would: for the
host's address, a connection, TLS, and etcd's /version. Each step takes up to `PATIENCE` seconds, so
that it is only for errors.
"""

import json
import re
import socket
import ssl
import threading
from dataclasses import dataclass

from spotelastic_checkpoints import addresses

from spotelastic.store.tls import TlsFiles

PATIENCE = 3.0
"""Seconds for each step, on a machine that is busy."""
_VERSION = b"GET /version HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why the endpoint does not answer."""

    told: str
    """The reason, in words for the user who named the endpoint."""
    final: bool = False
    """Whether waiting does not help."""


def diagnose(endpoint: str, tls: TlsFiles | None = None) -> Diagnosis:
    """Return why the endpoint ("host:port") does not answer."""
    host, port = addresses.split(endpoint)
    address = _resolve(host, port)
    if address is None:
        return Diagnosis(f"no address is known for {host}")
    try:
        return _encrypted(address, host, tls) if tls else _plain(address)
    except ConnectionRefusedError:
        return Diagnosis("connection refused")
    except TimeoutError:
        return Diagnosis("it does not answer")
    except OSError as error:
        return Diagnosis(f"{error.strerror or error}")


def _plain(address: tuple[str, int]) -> Diagnosis:
    with socket.create_connection(address, PATIENCE) as connection:
        said = _version(connection)
    if not said.startswith(b"HTTP/1.1 2") and _speaks_tls(address):
        return Diagnosis("it speaks TLS: add --rdzv-conf protocol=https,cacert=FILE", final=True)
    return read(said)


def _encrypted(address: tuple[str, int], host: str, tls: TlsFiles) -> Diagnosis:
    try:
        with (
            socket.create_connection(address, PATIENCE) as connection,
            tls.context().wrap_socket(connection, server_hostname=host) as encrypted,
        ):
            return read(_version(encrypted))
    except ssl.SSLCertVerificationError as error:
        whose = f"cacert={tls.cacert}" if tls.cacert else "the public authorities: give cacert=FILE"
        return Diagnosis(f"its certificate: {error.verify_message} (by {whose})", final=True)
    except ssl.SSLError as error:
        if _is_alert(error):
            mine = "this client's certificate (cert=, key=)"
            return Diagnosis(f"it does not accept {mine}: {_reason(error)}", final=True)
        return Diagnosis(f"it does not speak TLS ({_reason(error)})", final=True)
    except ConnectionResetError:  # The reset may overtake the alert that has the reason.
        return _broken_off(address)


def _broken_off(address: tuple[str, int]) -> Diagnosis:
    """Tell a server without TLS from one that refuses this client's certificate."""
    with socket.create_connection(address, PATIENCE) as connection:
        plain = _version(connection).startswith(b"HTTP/1.1 2")
    if plain:
        return Diagnosis("it does not speak TLS (it answers in the clear)", final=True)
    mine = "this client's certificate (cert=, key=)"
    return Diagnosis(f"it does not accept {mine}: it ended the TLS handshake", final=True)


def read(said: bytes) -> Diagnosis:
    """Return what the answer to GET /version says about the server."""
    if not said:
        return Diagnosis("it accepts connections and does not answer")
    _, _, body = said.partition(b"\r\n\r\n")
    match = re.search(rb"\{.*\}", body, re.DOTALL)
    try:
        version = str(json.loads(match[0])["etcdserver"]) if match else ""
    except (ValueError, KeyError, TypeError):
        version = ""
    if not version:
        what = "an HTTP server" if said.startswith(b"HTTP/") else "a server"
        return Diagnosis(f"{what} answers there, not etcd", final=True)
    if version.startswith(("0.", "1.", "2.")):
        return Diagnosis(f"etcd {version} answers: version 3 is needed", final=True)
    return Diagnosis(f"etcd {version} answers, but has no leader: are its other members there?")


def _version(connection: socket.socket) -> bytes:
    """Return the answer to GET /version; empty where there is none."""
    connection.settimeout(PATIENCE)
    said = b""
    try:
        connection.sendall(_VERSION)
        while len(said) < 1 << 16 and (part := connection.recv(4096)):
            said += part
    except (TimeoutError, ConnectionResetError, BrokenPipeError):
        pass
    return said


def _speaks_tls(address: tuple[str, int]) -> bool:
    """Return whether the server makes TLS handshakes, with any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for _ in range(3):
        try:
            with (
                socket.create_connection(address, PATIENCE) as connection,
                context.wrap_socket(connection),
            ):
                return True
        except ConnectionResetError:
            continue  # The reset may overtake the alert that has the reason.
        except OSError as error:
            return _is_alert(error)
    return False


def _resolve(host: str, port: int) -> tuple[str, int] | None:
    """Return the first address of a host, or None.

    This happens in a thread, because a name server that is away may take very long.
    """
    found: list[tuple[str, int]] = []

    def ask() -> None:
        try:
            found.extend((address, port) for address in addresses.resolve(host))
        except (OSError, UnicodeError):  # The host is not a valid name.
            return

    asking = threading.Thread(target=ask, name="resolve", daemon=True)
    asking.start()
    asking.join(PATIENCE * 2)
    return found[0] if found else None


def _is_alert(error: OSError) -> bool:
    """Return whether the other side refused by a TLS alert, and so speaks TLS."""
    return isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or "")


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()
