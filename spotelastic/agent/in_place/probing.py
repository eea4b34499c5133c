"""Finds out which daemons are gone: connections to them are refused at once."""

import errno
import ipaddress
import selectors
import socket
import time
from collections.abc import Collection

from spotelastic_checkpoints import addresses as addresses_

WITHIN = 0.05
"""Seconds for an answer. A machine that lives answers within milliseconds; of one that does not
answer nothing is known.
"""


def refusing(addresses: Collection[str], within: float = WITHIN) -> frozenset[str]:
    """Return those of these addresses (host:port) at which nobody listens."""
    found: set[str] = set()
    deadline = time.monotonic() + within
    with selectors.DefaultSelector() as selector:
        found.update(address for address in addresses if _is_refused(selector, address))
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                channel = key.fileobj
                assert isinstance(channel, socket.socket)
                if channel.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED:
                    found.add(str(key.data))
                selector.unregister(channel)
                channel.close()
        for key in [*selector.get_map().values()]:
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
    return frozenset(found)


def _is_refused(selector: selectors.BaseSelector, address: str) -> bool:
    """Connect, and return whether that was refused already. A host's name is not looked up."""
    host, port = addresses_.split(address)
    try:
        version = ipaddress.ip_address(host.partition("%")[0]).version
    except ValueError:
        return False
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    channel = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    code = channel.connect_ex((host, port))
    if code == errno.EINPROGRESS:
        selector.register(channel, selectors.EVENT_WRITE, address)
    else:
        channel.close()
    return code == errno.ECONNREFUSED
