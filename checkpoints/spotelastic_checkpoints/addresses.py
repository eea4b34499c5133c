"""Network addresses of IPv4 and IPv6, and host:port as one text, with brackets around the latter.

A host is a name or an address without brackets. A link-local IPv6 address has its interface with it
(fe80::1%eth0), which is this machine's name for it.
"""

import ipaddress
import socket
from contextlib import suppress
from typing import Any


def join(host: str, port: int | str) -> str:
    """host:port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split(text: str) -> tuple[str, int]:
    """Host and port. Raises ValueError where there is no port."""
    host, _, port = text.rpartition(":")
    return bare(host), int(port)


def bare(host: str) -> str:
    """Without the brackets of an IPv6 address."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def url(scheme: str, endpoint: str) -> str:
    """Of host:port; what stands before an interface is escaped in URLs."""
    return f"{scheme}://{endpoint.replace('%', '%25')}"


def of_url(text: str) -> str:
    """host:port of a URL without a path."""
    return text.partition("://")[2].replace("%25", "%")


def resolve(host: str) -> list[str]:
    """The addresses of a host, those of IPv4 first. Raises OSError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    found.sort(key=lambda each: each[0] != socket.AF_INET)
    return list(dict.fromkeys(_text(each[4]) for each in found))


def listen(address: str, port: int, backlog: int) -> socket.socket:
    """A server at the address alone. Raises OSError."""
    server = _bound(address, port)
    try:
        server.listen(backlog)
    except OSError:
        server.close()
        raise
    return server


def is_free(address: str, port: int) -> bool:
    """Whether a server could listen there; with port 0, whether the address is this machine's."""
    try:
        _bound(address, port).close()
    except OSError:
        return False
    return True


def own(connected: socket.socket) -> str:
    """host:port of this side."""
    name = connected.getsockname()
    return join(_text(name), name[1])


def towards(host: str, port: int) -> str:
    """The address of this machine by which it reaches the host; nothing is sent. Raises OSError."""
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
    """Of an address, or of the name that everybody gives to it."""
    with suppress(ValueError):
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    return host == "localhost"


def is_link_local(address: str) -> bool:
    """Good on one interface, which stands behind it."""
    with suppress(ValueError):
        return ipaddress.ip_address(address.partition("%")[0]).is_link_local
    return False


def everywhere(address: str) -> str:
    """What listens at each address of the machine, this one too."""
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
    """The address of a socket; Python may leave out the interface, and has its number."""
    address, scope = str(where[0]), where[3] if len(where) > 3 else 0
    if not scope or "%" in address:
        return address
    with suppress(OSError):
        return f"{address}%{socket.if_indextoname(scope)}"
    return address
