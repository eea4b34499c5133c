"""Formats, parses and resolves network addresses of IPv4 and IPv6, and "host:port" endpoints.

In an endpoint, an IPv6 address stands in brackets. A host is a name, or an address without
brackets. A link-local IPv6 address carries the name of its interface on this machine
(fe80::1%eth0).
"""

import ipaddress
import socket
from contextlib import suppress
from typing import Any


def join(host: str, port: int | str) -> str:
    """Return host and port as one endpoint, "host:port"."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split(text: str) -> tuple[str, int]:
    """Split an endpoint into host and port. Raises ValueError where it has no port."""
    host, _, port = text.rpartition(":")
    return bare(host), int(port)


def bare(host: str) -> str:
    """Return the host without the brackets of an IPv6 address."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def url(scheme: str, endpoint: str) -> str:
    """Return the URL of an endpoint. The "%" before an interface name is escaped."""
    return f"{scheme}://{endpoint.replace('%', '%25')}"


def of_url(text: str) -> str:
    """Return the endpoint of a URL that has no path."""
    return text.partition("://")[2].replace("%25", "%")


def resolve(host: str) -> list[str]:
    """Return the addresses of a host, IPv4 first. Raises OSError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    found.sort(key=lambda each: each[0] != socket.AF_INET)
    return list(dict.fromkeys(_text(each[4]) for each in found))


def listen(address: str, port: int, backlog: int) -> socket.socket:
    """Open a server socket on this address only. Raises OSError."""
    server = _bound(address, port)
    try:
        server.listen(backlog)
    except OSError:
        server.close()
        raise
    return server


def is_free(address: str, port: int) -> bool:
    """Return whether a server could listen there.

    With port 0: whether the address is this machine's.
    """
    try:
        _bound(address, port).close()
    except OSError:
        return False
    return True


def own(connected: socket.socket) -> str:
    """Return the endpoint of this side of a connection."""
    name = connected.getsockname()
    return join(_text(name), name[1])


def towards(host: str, port: int) -> str:
    """Return the address from which this machine reaches the host.

    Nothing is sent. Raises OSError where there is no way to the host.
    """
    error = OSError(f"no address is known for {host}")
    found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    for family, kind, protocol, _, where in sorted(found, key=lambda each: each[0]):
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.connect(where)
            except OSError as problem:
                error = problem
            else:
                return _text(probe.getsockname())
    raise error


def is_loopback(host: str) -> bool:
    """Return whether the host is a loopback address or "localhost"."""
    with suppress(ValueError):
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    return host == "localhost"


def is_link_local(address: str) -> bool:
    """Return whether the address is valid on one interface only."""
    with suppress(ValueError):
        return ipaddress.ip_address(address.partition("%")[0]).is_link_local
    return False


def everywhere(address: str) -> str:
    """Return the address to listen at on all interfaces, in the address family of `address`."""
    return "::" if ":" in address else "0.0.0.0"


def _bound(address: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, where = min(found, key=lambda each: each[0])
    server = socket.socket(family, kind, protocol)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(where)
    except OSError:
        server.close()
        raise
    return server


def _text(where: Any) -> str:
    """Return the address of a socket with its interface's name, which Python may leave out."""
    address, scope = str(where[0]), where[3] if len(where) > 3 else 0
    if not scope or "%" in address:
        return address
    with suppress(OSError):
        return f"{address}%{socket.if_indextoname(scope)}"
    return address
