"""Tells which user of this machine is at the other end of a connection over loopback."""

import errno
import os
import socket
import struct
import sys
from pathlib import Path

_SOCK_DIAG, _BY_FAMILY = 4, 20  # NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY
_UID = 80  # where an answer has the user: after its header, 4 bytes, the addresses, 3 numbers


def are_ours(peer: tuple[str, int], own: tuple[str, int]) -> bool:
    """Whether a connection comes from a process of this user."""
    try:
        owner = asked_owner(peer, own)
    except OSError:  # a kernel without sock_diag, as in some sandboxes
        owner = owner_of(peer, own, Path("/proc/net/tcp").read_text())
    return owner in (0, os.getuid())


def asked_owner(peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    """Return what `owner_of` does. The kernel looks up one socket: all take it 5 ms and more.

    The request and its answer are as in linux/inet_diag.h. Raises `OSError` where it cannot answer.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as kernel:
        kernel.bind((0, 0))
        addresses = b"".join(socket.inet_aton(host).ljust(16, b"\0") for host, _ in (peer, own))
        wanted = struct.pack("!HH", peer[1], own[1]) + addresses + struct.pack("=Iq", 0, -1)
        request = struct.pack("=BBHI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0xFFFF_FFFF) + wanted
        kernel.send(struct.pack("=IHHII", 16 + len(request), _BY_FAMILY, 1, 0, 0) + request)
        answer = kernel.recv(4096)
    _, kind, _, _, _, error = struct.unpack_from("=IHHIIi", answer)
    if kind == _BY_FAMILY:
        return int(struct.unpack_from("=I", answer, _UID)[0])
    if error == -errno.ENOENT:
        return None
    raise OSError(-error, os.strerror(-error))


def owner_of(peer: tuple[str, int], own: tuple[str, int], table: str) -> int | None:
    """Return the user id of a connection's other end; None if it has ended.

    `table` is the text of /proc/net/tcp: the address of each socket, that of its peer, its user.
    """
    wanted = [_as_in_proc(*peer), _as_in_proc(*own)]
    for line in table.splitlines()[1:]:
        words = line.split()
        if words[1:3] == wanted:
            return int(words[7])
    return None


def _as_in_proc(host: str, port: int) -> str:
    number = int.from_bytes(socket.inet_aton(host), sys.byteorder)
    return f"{number:08X}:{port:04X}"
