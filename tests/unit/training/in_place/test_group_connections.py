"""How the connections of a process group end, seen from both sides, and which ones are not touched.

Most of this needs no group: `loop` waits for connections as gloo does. gloo closes its descriptor
of a connection that has ended. Here the test does that.
"""

import asyncio
import contextlib
import ctypes
import os
import select
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from spotelastic.training.in_place.groups import Groups
from spotelastic.training.runtime import connections

Pair = tuple[socket.socket, socket.socket]


@contextlib.contextmanager
def loop(*awaited: socket.socket) -> Iterator[None]:
    """Waits for these as gloo does: in an epoll instance that is not closed on exec, with a pipe by
    which it is woken.
    """
    reads, writes = os.pipe()
    with select.epoll() as epoll:
        os.set_inheritable(epoll.fileno(), True)
        epoll.register(reads, select.EPOLLIN)
        for each in awaited:
            epoll.register(each, select.EPOLLIN)
        try:
            yield
        finally:
            os.close(reads)
            os.close(writes)


@contextlib.contextmanager
def connected(groups: Groups, number: int = 1) -> Iterator[list[Pair]]:
    """Yields connections of the groups with peers: this process's ends, and those of the peers."""
    with contextlib.ExitStack() as stack:
        pairs = [stack.enter_context(download()) for _ in range(number)]
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        stack.enter_context(loop(listening, *(own for own, _ in pairs)))
        try:
            yield pairs
        finally:
            groups.leave()


@contextlib.contextmanager
def download(port: int = 0) -> Iterator[Pair]:
    """Yields both ends of a connection that is nobody's but a thread's."""
    with (
        socket.create_server(("127.0.0.1", port)) as listening,
        socket.create_connection(listening.getsockname()) as own,
        listening.accept()[0] as peer,
    ):
        own.settimeout(10)
        peer.settimeout(10)
        yield own, peer


def goes_on(own: socket.socket, peer: socket.socket) -> bool:
    peer.sendall(b"shard")
    own.sendall(b"thanks")
    return (own.recv(100), peer.recv(100)) == (b"shard", b"thanks")


def writes_go_well(peer: socket.socket) -> None:
    """The first write to a connection that is refused goes well, and the next one does not."""
    for _ in range(3):
        peer.sendall(b"of a collective")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_a_rank_that_is_woken_reads_an_end_and_its_peers_notice_nothing() -> None:
    groups = Groups()
    with connected(groups) as [(own, peer)]:
        peer.sendall(b"in flight")
        groups.wake()
        assert own.recv(100) == b"in flight"
        assert own.recv(100) == b""
        own.close()
        writes_go_well(peer)
        groups.close()  # the main thread comes out of the collective, and rests
        writes_go_well(peer)
        groups.leave()
        with pytest.raises(OSError):
            writes_go_well(peer)


def test_a_rank_whose_collective_failed_wakes_its_peers_whose_writes_go_well() -> None:
    groups = Groups()
    with connected(groups) as [(own, peer)]:
        groups.close()
        groups.wake()  # the agent asks it to rest, as it does all others
        assert peer.recv(100) == b""
        writes_go_well(peer)
        assert own.recv(100) == b"of a collective" * 3
        own.close()  # with its groups
        writes_go_well(peer)


def test_a_group_that_is_being_made_is_woken_again_and_no_connection_is_held_twice() -> None:
    groups = Groups()
    with groups.making(), connected(groups) as [(first, _)]:
        groups.wake()
        with download() as (second, peer), loop(second):
            before = descriptors()
            groups.wake()
            groups.wake()
            assert (first.recv(100), second.recv(100)) == (b"", b"")
            first.close()
            second.close()
            writes_go_well(peer)
            groups.leave()
            assert descriptors() == before - 3, "the test's two, and one that was held before"


def test_so_many_connections_that_descriptors_would_run_out_are_shut_all_the_same() -> None:
    groups = Groups(most_held=1)
    with connected(groups, 3) as pairs:
        groups.wake()
        assert [own.recv(100) for own, _ in pairs] == [b"", b"", b""]


def test_a_descriptor_that_is_of_something_else_by_now_is_left_alone() -> None:
    groups = Groups()
    with connected(groups) as [(own, _)], download() as (other, far):
        os.dup2(other.fileno(), own.fileno())
        groups.wake()
        assert goes_on(own, far)


def test_a_rank_that_waits_for_the_store_is_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Groups()
    with download() as (other, far), download() as (own, store):
        monkeypatch.setenv("MASTER_ADDR", "localhost")
        monkeypatch.setenv("MASTER_PORT", str(own.getpeername()[1]))
        with groups.making():
            groups.wake()
        assert own.recv(100) == b""
        writes_go_well(store)
        assert goes_on(other, far)
        groups.leave()


# -- what is not ours -----------------------------------------------------------------------------


def by_libc(port: int) -> socket.socket:
    """A connection that a library in C has made, as Python sees none of."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.socket(socket.AF_INET, socket.SOCK_STREAM, 0)
    address = struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", port, b"\x7f\0\0\1")
    assert libc.connect(fd, address, len(address)) == 0
    return socket.socket(fileno=fd)


async def _serve(ready: threading.Event, port: list[int], over: asyncio.Event) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        port.append(server.sockets[0].getsockname()[1])
        ready.set()
        await over.wait()


@contextlib.contextmanager
def a_server_of_a_thread() -> Iterator[socket.socket]:
    """Yields a client of a server that waits in an epoll instance of its own."""
    ready, port, over = threading.Event(), list[int](), asyncio.Event()
    events = asyncio.new_event_loop()
    thread = threading.Thread(
        target=lambda: events.run_until_complete(_serve(ready, port, over)), daemon=True
    )
    thread.start()
    assert ready.wait(10)
    with socket.create_connection(("127.0.0.1", port[0]), 10) as client:
        yield client
    events.call_soon_threadsafe(over.set)
    thread.join(10)
    events.close()


def test_what_other_threads_connect_while_a_group_is_made_lives_on() -> None:
    """With a real group of two ranks, both in this process, which are woken."""
    groups, store, made = Groups(), dist.HashStore(), [None, None]

    def make(rank: int) -> None:
        group = dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=60))
        made[rank] = group  # type: ignore[call-overload]

    others = set(connections.of_groups())
    with contextlib.ExitStack() as stack:
        with groups.making():
            first = threading.Thread(target=make, args=(0,))
            first.start()
            client = stack.enter_context(a_server_of_a_thread())
            mine = stack.enter_context(download())
            listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            plain = stack.enter_context(by_libc(listening.getsockname()[1]))
            far = stack.enter_context(listening.accept()[0])
            make(1)
            first.join(60)
        assert len(connections.of_groups().keys() - others) == 2 * 2, "with what listens"
        tensor = torch.ones(1)
        waits = made[0].allreduce([tensor])  # type: ignore[attr-defined]
        groups.wake()
        with pytest.raises(RuntimeError, match=r"peer|Read error"):
            waits.wait()
        assert goes_on(*mine)
        assert goes_on(plain, far)
        client.sendall(b"still there")
        assert client.recv(100) == b"still there"
    made.clear()
    groups.leave()


GOES = """
import socket, sys, threading, torch.distributed as dist
from spotelastic.training.in_place.groups import groups
from spotelastic.training.in_place.watching import watch

watch()
port = int(sys.argv[1])
downloads = [socket.create_connection(("127.0.0.1", port))]
woken = threading.Event()

def wake():
    while not woken.wait(0.05):  # also before it waits, which wakes nobody
        groups.wake()

threading.Thread(target=wake, daemon=True).start()
try:
    dist.init_process_group("gloo", init_method="env://", rank=0, world_size=2)
except Exception as error:
    woken.set()
    print(type(error).__name__, flush=True)
print(downloads[0].recv(100))
"""


def test_a_rank_that_waits_for_others_to_make_a_group_is_woken_and_its_download_goes_on() -> None:
    """The other rank never comes. The store is another process's, as in a round."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    with socket.create_server(("127.0.0.1", 0)) as listening:
        rank = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", GOES, str(listening.getsockname()[1])],
            env={**os.environ, **environ},
            stdout=subprocess.PIPE,
            text=True,
        )
        with listening.accept()[0] as far:
            assert rank.stdout is not None
            assert rank.stdout.readline().startswith("Dist")
            far.sendall(b"shard")
            assert rank.communicate(timeout=60)[0] == "b'shard'\n"


def test_connections_of_votes_end_with_those_of_the_groups() -> None:
    """A rank that is woken reads an end, and so do the peers of one that rests alone."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        for ends in ("wake", "close"):
            groups = Groups()
            own = socket.create_connection(listening.getsockname())
            groups.votes_by(own)
            with listening.accept()[0] as peer:
                own.send(b"1")
                getattr(groups, ends)()
                assert peer.recv(1) == b"1"
                reads = own if ends == "wake" else peer
                assert reads.recv(1) == b""
                peer.send(b"1")  # goes well, whatever this process has shut
                groups.leave()
                assert own.fileno() == -1
