"""What a node sends to the others is counted as the kernel counts it."""

import contextlib
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotelastic.agent.peer_traffic import EVERY, PeerTraffic, TcpConnection, by_efa, connections
from spotelastic.model.round import Member, Round

PEERS = {"127.0.0.2": "b", "127.0.0.3": "a", "::1": "c"}


def round_of(zones: dict[str, str], own: str = "127.0.0.9") -> Round:
    """Node "me" in zone a, and one node for each address."""
    places = [("me", own, "a"), *((f"n-{at}", at, zone) for at, zone in zones.items())]
    members = tuple(
        Member(node, f"{node}-1", slot, at, zone, 1) for slot, (node, at, zone) in enumerate(places)
    )
    return Round(1, "r", "started", members, "start", "")


@pytest.fixture
def kernel() -> None:
    """A kernel that tells of connections: some sandboxes do not."""
    try:
        next(iter(connections()), None)
    except OSError as error:
        pytest.skip(f"this kernel does not tell of connections: {error}")


@contextlib.contextmanager
def connected(address: str, own: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    mapped = address.startswith("::ffff:")
    place = ("::" if mapped else address, 0)
    with socket.create_server(place, family=family, dualstack_ipv6=mapped) as server:
        there = address, server.getsockname()[1]
        sender = socket.create_connection(there, source_address=(own, 0))
        receiver, _ = server.accept()
        with sender, receiver:
            yield sender, receiver


def send(pair: tuple[socket.socket, socket.socket], size: int) -> None:
    sender, receiver = pair
    for at in range(0, size, 1 << 15):
        piece = min(1 << 15, size - at)
        sender.sendall(b"x" * piece)
        while piece:
            piece -= len(receiver.recv(piece))


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(
    ("address", "own"),
    [("127.0.0.2", "127.0.0.9"), ("::1", "::1"), ("::ffff:127.0.0.2", "::ffff:127.0.0.9")],
    ids=["IPv4", "IPv6", "IPv4 by an IPv6 socket"],
)
def test_bytes_to_another_zone_are_counted_once_each(address: str, own: str) -> None:
    now = [100.0]
    sent = PeerTraffic("me", clock=lambda: now[0])
    round_ = round_of({**PEERS, "127.0.0.3": "a"}, own)
    sent(round_)
    with connected(address, own) as pair:
        for mebibytes in (1, 2):
            send(pair, 1 << 20)
            now[0] += EVERY
            found = sent(round_)
            # The kernel counts the beginning of a connection as one byte.
            assert 0 <= found.crossed - mebibytes * (1 << 20) <= 16
            assert found.crossing > 0
            assert found.sending == found.crossing
        before = found
        now[0] += EVERY
        assert sent(None).crossed == before.crossed, "nothing more was sent"
    now[0] += EVERY
    after = sent(round_)
    assert after.crossed == before.crossed, "a connection that has ended takes nothing back"
    assert after.crossing < before.crossing


@given(
    st.lists(
        st.dictionaries(
            st.integers(0, 5), st.tuples(st.sampled_from([*PEERS, "10.9.9.9"]), st.integers(0, 9))
        ),
        max_size=8,
    )
)
def test_the_sum_is_what_connections_have_sent_whatever_comes_and_goes(
    looks: Sequence[dict[int, tuple[str, int]]],
) -> None:
    """Connections by number, each with its peer and what it sends until the next look."""
    now, there = [0.0], dict[bytes, TcpConnection]()
    sent = PeerTraffic("me", there.values, lambda: 0, lambda: now[0])
    crossed = 0
    for look in looks:
        kept = dict[bytes, TcpConnection]()
        for number, (peer, more) in look.items():
            cookie = f"{number} {peer}".encode()
            ends = ip_address(peer).packed, ip_address("127.0.0.9").packed
            known = there.get(cookie, TcpConnection(cookie, *ends, 0))
            kept[cookie] = replace(known, sent=known.sent + more)
            crossed += more if PEERS.get(peer, "a") != "a" else 0
        there.clear()
        there.update(kept)
        now[0] += EVERY
        assert sent(round_of(PEERS)).crossed == crossed


@pytest.mark.usefixtures("kernel")
def test_what_stays_in_the_zone_or_is_of_another_node_here_does_not_cross() -> None:
    """Nodes of the local cloud share one kernel."""
    now = [0.0]
    sent = PeerTraffic("me", clock=lambda: now[0])
    sent(round_of(PEERS))
    with (
        connected("127.0.0.3", "127.0.0.9") as within,
        connected("127.0.0.2", "127.0.0.8") as of_another,
    ):
        send(within, 1 << 20)
        send(of_another, 1 << 20)
        now[0] += EVERY
        found = sent(round_of(PEERS))
    assert found.crossed == found.crossing == 0
    assert found.sending * EVERY == pytest.approx((1 << 20) * 0.08, rel=0.01), "smoothed"


def test_what_a_kernel_does_not_tell_is_not_measured() -> None:
    def refuses() -> Iterator[TcpConnection]:
        raise PermissionError(1, "not here")

    sent = PeerTraffic("me", refuses, lambda: 0, lambda: 0.0)
    assert (sent(round_of(PEERS)).crossed, sent(None).sending) == (0, 0.0)


def test_efa_counts_for_what_is_sent_and_never_for_what_crosses(tmp_path: Path) -> None:
    now, folder = [0.0], tmp_path / "rdmap0" / "ports" / "1" / "hw_counters"
    folder.mkdir(parents=True)
    sent = PeerTraffic("me", lambda: (), lambda: by_efa(tmp_path), lambda: now[0])
    for counted in (10**12, 10**12 + 6 * 10**9):
        (folder / "tx_bytes").write_text(f"{counted}\n")
        now[0] += 60.0
        found = sent(round_of(PEERS))
    assert found.crossed == found.crossing == 0
    assert found.sending == pytest.approx(1e8 * (1 - 2.718281828**-1)), "nothing before the first"
