"""Binds a given port under every address of the machine."""

import errno
import socket
import time

_LOOK_AGAIN = 0.02


def all_addresses(port: int, within: float = 0.0) -> socket.socket:
    """Return sockets bound to the port, for IPv4 and IPv6 where there are both.

    Connections are refused until they listen.

    Raises OSError if the port is still in use after so many seconds; no event reports when it
    becomes free.
    """
    deadline = time.monotonic() + within
    while True:
        try:
            return _bound(port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
                raise
        time.sleep(_LOOK_AGAIN)


def is_free(port: int) -> bool:
    """Whether the port is free under every address."""
    try:
        with all_addresses(port) as found:
            found.listen(1)
    except OSError:
        return False
    return True


def _bound(port: int) -> socket.socket:
    both = socket.has_dualstack_ipv6()
    found = socket.socket(socket.AF_INET6 if both else socket.AF_INET)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if both:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        found.bind(("::" if both else "0.0.0.0", port))
    except OSError:
        found.close()
        raise
    return found
