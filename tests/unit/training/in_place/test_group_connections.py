"""How the connections of a process group end, seen from both sides: real sockets, no group.

gloo closes its descriptor of a connection that has ended. Here the test does that.
"""

import contextlib
import os
import socket
from collections.abc import Iterator

import pytest

from spotelastic.training.in_place.groups import Groups, connections


@contextlib.contextmanager
def connected(
    groups: Groups, number: int = 1
) -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    """Yields connections of the groups with peers: this process's ends, and those of the peers."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        pairs = []
        with groups.making():
            for _ in range(number):
                own = stack.enter_context(socket.create_connection(listening.getsockname()))
                pairs.append((own, own))
        for at, (own, _) in enumerate(pairs):
            peer, _ = listening.accept()
            peer.settimeout(10)
            own.settimeout(10)
            pairs[at] = own, stack.enter_context(peer)
        try:
            yield pairs
        finally:
            groups.leave()


def writes_go_well(peer: socket.socket) -> None:
    """The first write to a connection that is refused goes well, and the next one does not."""
    for _ in range(3):
        peer.sendall(b"of a collective")


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
    with groups.making(), connected(groups, 2) as [(first, _), (second, peer)]:
        groups.wake()
        groups.wake()
        assert (first.recv(100), second.recv(100)) == (b"", b"")
        first.close()
        second.close()
        writes_go_well(peer)
        before = set(connections())
        groups.leave()
        # The peers' ends have appeared here, too.
        assert len(before - set(connections())) == 4


def test_so_many_connections_that_descriptors_would_run_out_are_shut_all_the_same() -> None:
    groups = Groups(most_held=1)
    with connected(groups, 3) as pairs:
        groups.wake()
        assert [own.recv(100) for own, _ in pairs] == [b"", b"", b""]


def test_a_descriptor_that_is_of_something_else_by_now_is_left_alone() -> None:
    groups = Groups()
    with (
        connected(groups) as [(own, _)],
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as other,
    ):
        os.dup2(other.fileno(), own.fileno())
        far, _ = listening.accept()
        with far:
            groups.wake()
            far.sendall(b"alive")
            assert own.recv(100) == b"alive"


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
