"""Chooses free ports for a test, even while other tests run."""

import contextlib
import random
import socket
from collections.abc import Iterable, Iterator

HOST = "127.0.0.1"


@contextlib.contextmanager
def held_ports(count: int, host: str = HOST) -> Iterator[list[int]]:
    """Nobody listens there, and the kernel gives them to no other process, as it would sooner or
    later where a server is yet to start, is down for a while, or is never to be.

    Who names such a port, with SO_REUSEADDR as servers do, can listen there all the same.
    """
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind((host, 0))
        yield [int(each.getsockname()[1]) for each in sockets]


def free_pair(hosts: Iterable[str]) -> int:
    """A port that, with the next one, is free on all hosts, and that no connection is given."""
    everywhere = list(hosts)
    for port in random.sample(range(20_000, 30_000, 2), 50):
        if all(_free(host, port + number) for host in everywhere for number in (0, 1)):
            return port
    raise AssertionError("no two ports are free")


def _free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
