"""Why an endpoint does not serve as etcd 3 does, in words for the person who named it.

gRPC tells apart only "unavailable" and "too late"; this asks once more, as a plain client would:
name, connection, TLS, and etcd's /version. Only for an error that is on its way: it takes up to
`PATIENCE` seconds at each step.
"""

import json
import re
import socket
import ssl
import threading
from dataclasses import dataclass

from spotelastic_checkpoints import addresses

from spotelastic.store.tls import TlsFiles

PATIENCE = 1.0
"""Seconds for each step."""
_VERSION = b"GET /version HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`final`: waiting does not help."""

    told: str
    final: bool = False


def diagnose(endpoint: str, tls: TlsFiles | None = None) -> Diagnosis:
    """`endpoint` is host:port."""
    host, port = addresses.split(endpoint)
    address = _resolve(host, port)
    if address is None:
        return Diagnosis(f"no address is known for {host}")
    try:
        return _encrypted(address, host, tls) if tls else _plain(address)
    except ConnectionRefusedError:
        return Diagnosis("nobody listens there")
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
    except ConnectionResetError:  # which may overtake the reason
        return _broken_off(address)


def _broken_off(address: tuple[str, int]) -> Diagnosis:
    with socket.create_connection(address, PATIENCE) as connection:
        plain = _version(connection).startswith(b"HTTP/1.1 2")
    if plain:
        return Diagnosis("it does not speak TLS (it answers in the clear)", final=True)
    mine = "this client's certificate (cert=, key=)"
    return Diagnosis(f"it does not accept {mine}: it ended the TLS handshake", final=True)


def read(said: bytes) -> Diagnosis:
    """Pure: what the answer to GET /version says about who answers."""
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
        return Diagnosis(f"{what} answers that is not etcd", final=True)
    if version.startswith(("0.", "1.", "2.")):
        return Diagnosis(f"etcd {version} answers: version 3 is needed", final=True)
    return Diagnosis(f"etcd {version} answers, but has no leader: are its other members there?")


def _version(connection: socket.socket) -> bytes:
    """All that is said in answer; empty when nothing is."""
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
    """Whether somebody shakes hands there, whoever that may be."""
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
            continue  # which may overtake the reason
        except OSError as error:
            return _is_alert(error)
    return False


def _resolve(host: str, port: int) -> tuple[str, int] | None:
    """In a thread, because a name server that is away takes longer than anybody wants to wait."""
    found: list[tuple[str, int]] = []

    def ask() -> None:
        try:
            found.extend((address, port) for address in addresses.resolve(host))
        except (OSError, UnicodeError):  # a name that cannot be one
            return

    asking = threading.Thread(target=ask, name="resolve", daemon=True)
    asking.start()
    asking.join(PATIENCE * 2)
    return found[0] if found else None


def _is_alert(error: OSError) -> bool:
    """Whether the other side refused by TLS's own means, and so speaks it."""
    return isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or "")


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()
