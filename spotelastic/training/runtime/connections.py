"""Finds the connections of this process's groups among all others, for certain.

A thread of gloo's waits for all events of a group in one epoll instance: for a pipe, for the socket
that listens for the group's peers, and for each connection. The kernel tells what an instance waits
for. Libraries and Python close theirs on exec, and are woken by an event counter or a socket. So an
instance of gloo's is one that is not closed on exec, and that waits for a pipe.
"""

import contextlib
import os
import re
import socket
import stat
from collections.abc import Collection, Iterator, Mapping

Address = tuple[str, int]
"""IP address and port."""
Sockets = dict[int, int]
"""Descriptors of connections, with their inodes."""

_WAITS_FOR = re.compile(r"^tfd:\s*(\d+) .*\bino:([0-9a-f]+)", re.M)
_FLAGS = re.compile(r"^flags:\s*([0-7]+)", re.M)
_MAPPED = "::ffff:"
"""What an IPv4 address begins with where a socket of IPv6 has it."""


def of_groups(store: Collection[Address] = ()) -> Sockets:
    """Return gloo's connections, and those to a store that listens there."""
    found: Sockets = {}
    for fd, what in _descriptors():
        if what == "anon_inode:[eventpoll]":
            found.update(_of_gloo(fd))
        elif store and what.startswith("socket:"):
            with contextlib.suppress(OSError):
                if _peer(fd) in store:
                    found[fd] = os.fstat(fd).st_ino
    return found


def of_store(variables: Mapping[str, str]) -> frozenset[Address]:
    """Return where the store listens that these variables name; empty if they name none."""
    try:
        host, port = variables["MASTER_ADDR"], int(variables["MASTER_PORT"])
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (KeyError, ValueError, OSError):
        return frozenset()
    return frozenset((str(address[0]), port) for *_, address in found)


def opened(fd: int, inode: int) -> socket.socket | None:
    """Return a connection by a descriptor of its own; None if it is gone, or no connection."""
    try:
        own = os.dup(fd)
    except OSError:
        return None
    status = os.fstat(own)
    if stat.S_ISSOCK(status.st_mode) and status.st_ino == inode:
        found = socket.socket(fileno=own)
        if not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return found
        found.close()
    else:
        os.close(own)
    return None


def _descriptors() -> Iterator[tuple[int, str]]:
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError):
            yield int(name), os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115


def _of_gloo(epoll: int) -> Sockets:
    """Return what an epoll instance waits for besides pipes; empty if it is none of gloo's."""
    try:
        with open(f"/proc/self/fdinfo/{epoll}") as file:  # noqa: PTH123
            told = file.read()
    except OSError:
        return {}
    flags = _FLAGS.search(told)
    if flags is None or int(flags[1], 8) & os.O_CLOEXEC:
        return {}
    awaited = {int(fd): int(inode, 16) for fd, inode in _WAITS_FOR.findall(told)}
    pipes = [fd for fd, inode in awaited.items() if _is_pipe(fd, inode)]
    return {fd: awaited[fd] for fd in awaited.keys() - pipes} if pipes else {}


def _is_pipe(fd: int, inode: int) -> bool:
    with contextlib.suppress(OSError):
        status = os.fstat(fd)
        return stat.S_ISFIFO(status.st_mode) and status.st_ino == inode
    return False


def _peer(fd: int) -> Address | None:
    with socket.socket(fileno=os.dup(fd)) as same:
        if same.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        host, port = same.getpeername()[:2]
    return host.removeprefix(_MAPPED), port
