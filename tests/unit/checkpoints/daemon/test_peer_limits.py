"""Whoever reaches a daemon's port, whatever it sends: no other connection has less of it."""

import math
import socket
import struct
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from spotelastic_checkpoints import addresses, framing
from spotelastic_checkpoints.errors import RestoreFailed
from spotelastic_checkpoints.memory import arena as memory
from spotelastic_checkpoints.memory.arena import Arena, SlotHeader
from spotelastic_checkpoints.peers import handshake, transfers
from spotelastic_checkpoints.peers.handshake import PeerCredentials
from spotelastic_checkpoints.peers.messages import MOST_PIECES, Digest, Inventory
from spotelastic_checkpoints.peers.transfers import UNPROVEN, Peer, PeerServer
from spotelastic_checkpoints.types import Item
from support.draws import drawn
from support.processes.patience import PATIENT, eventually

CREDENTIALS = PeerCredentials("the cluster's")
NBYTES = 1 << 16
SHAPE = (NBYTES // 4,)
ITEM = Item("weight", ("weight",), "float32", SHAPE, (0,), SHAPE, -1, 0, NBYTES)
HEADER = SlotHeader(
    owner="run", incarnation="r1", step=1, layout="layout", rank=0, world_size=1, ranks=(0,),
    whole=True, chunks=1, shared=1, owned=1, owned_bytes=NBYTES, data_bytes=NBYTES,
    index_bytes=0, values=0, due=False,
)  # fmt: skip
SEALED = Inventory("r1", 1, "layout")


class Served:
    """A daemon's server of one sealed slot."""

    def __init__(self, folder: Path) -> None:
        self.arena = Arena(folder, 1)
        index = memory.encode_index((ITEM,))
        size = memory.slot_bytes(NBYTES, index, 0)
        slot = self.arena.furnish(self.arena.slot_path(0, 0), size)
        slot.open()
        slot.data[:NBYTES] = bytes(range(256)) * (NBYTES // 256)
        slot.write_index(NBYTES, index)
        slot.seal(msgspec.structs.replace(HEADER, index_bytes=len(index)), [])
        self.generation = slot.generation
        self.told: list[str] = []
        self.server = PeerServer(self.arena, CREDENTIALS, "127.0.0.1", 0, self.told.append)

    def connect(self) -> socket.socket:
        connection = socket.create_connection(addresses.split(self.server.address), PATIENT)
        connection.settimeout(PATIENT)
        return connection

    def greeted(self) -> socket.socket:
        return handshake.greet(self.connect(), CREDENTIALS)

    def serves(self) -> bool:
        with closing(Peer(self.server.address, CREDENTIALS)) as peer:
            return len(peer.inventory(SEALED)) == 1


def serving() -> int:
    return sum(thread.name == "peer" for thread in threading.enumerate())


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """No thread of it ends with an error."""
    failed: list[str] = []
    before, threading.excepthook = threading.excepthook, lambda it: failed.append(str(it.exc_value))
    try:
        made = Served(tmp_path_factory.mktemp("arena"))
        yield made
        made.server.close()
        eventually(lambda: not serving())
    finally:
        threading.excepthook = before
    assert failed == []


def answered(connection: socket.socket) -> bytes:
    """What comes until the connection ends, or half a second passes without anything."""
    connection.settimeout(0.5)
    found = b""
    with suppress(OSError):  # it may have ended before
        connection.shutdown(socket.SHUT_WR)
        while some := connection.recv(1 << 20):
            found += some
    return found


numbers = st.one_of(
    st.integers(-3, 3),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.sampled_from([NBYTES, NBYTES - 1, NBYTES + 1, 1 << 31, 1 << 32, (1 << 63) - 1]),
    st.floats(),
    st.none(),
)
requests = st.fixed_dictionaries(
    {"type": st.sampled_from(["read", "digest", "offer", "inventory", "odd"])},
    optional={
        **dict.fromkeys(("rank", "generation", "offset", "length", "piece", "after"), numbers),
        "step": numbers,
        "rate": numbers,
        "incarnation": st.sampled_from(["r1", "", "\0"]),
        "layout": st.sampled_from(["layout", ""]),
    },
)


@settings(max_examples=drawn(60), suppress_health_check=[*HealthCheck], derandomize=True)
@given(sent=st.lists(requests, min_size=1, max_size=4))
@example(sent=[{"type": "offer", "incarnation": "r1", "after": 9, "rate": math.nan}])
@example(sent=[{"type": "offer", "incarnation": "r1", "after": 0, "rate": math.inf}])
@example(sent=[{"type": "digest", "rank": 0, "offset": 0, "length": 64, "piece": 0}])
def test_any_request_is_answered_or_ends_its_own_connection(
    served: Served, sent: list[dict[str, Any]]
) -> None:
    with closing(served.greeted()) as connection:
        known = {"rank": 0, "generation": served.generation, "offset": 0, "length": 64, "piece": 64}
        for each in sent:
            if each.get("after") != 0:  # otherwise it waits for a save that there is not
                with suppress(OSError):
                    connection.sendall(framing.frame(1, {**known, **each}))
        answered(connection)
    assert served.serves()


@settings(max_examples=drawn(40), suppress_health_check=[*HealthCheck], derandomize=True)
@given(sent=st.binary(max_size=300), framed=st.booleans(), greets=st.booleans())
@example(sent=b"\xff\xff\xff\xff", framed=False, greets=True)
@example(sent=b"\x92\x01\xa2\xff\xfe", framed=True, greets=True)
@example(sent=b"\x91" * 300, framed=True, greets=True)
def test_any_bytes_end_their_own_connection(
    served: Served, sent: bytes, framed: bool, greets: bool
) -> None:
    with closing(served.greeted() if greets else served.connect()) as connection:
        with suppress(OSError):
            connection.sendall(struct.pack("<I", len(sent)) + sent if framed else sent)
        answered(connection)
    assert served.serves()


def test_more_checksums_than_a_replica_wants_are_refused(served: Served) -> None:
    with closing(Peer(served.server.address, CREDENTIALS)) as peer:
        ask = Digest(0, served.generation, 0, NBYTES, 1)
        with pytest.raises(RestoreFailed, match=r"65,536 checksums at once are too many"):
            peer.digests(ask)
        piece = NBYTES // MOST_PIECES
        assert len(peer.digests(msgspec.structs.replace(ask, piece=piece))) == MOST_PIECES


def test_those_that_prove_nothing_are_few_and_others_are_served(served: Served) -> None:
    idle = [served.connect() for _ in range(3 * UNPROVEN)]
    try:
        assert served.serves()
        eventually(lambda: serving() <= UNPROVEN)
        ended = sum(not answered(each) and _is_ended(each) for each in idle[:UNPROVEN])
        assert ended == UNPROVEN, "the oldest go first"
    finally:
        for each in idle:
            each.close()
    eventually(lambda: not serving())


def _is_ended(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_a_greeting_that_comes_byte_by_byte_is_ended_in_time(tmp_path: Path) -> None:
    credentials = PeerCredentials("the cluster's", within=1.0)
    ours, theirs = socket.socketpair()
    over = threading.Event()

    def drip() -> None:
        with suppress(OSError):
            while not over.wait(0.05):
                ours.sendall(b"s")

    dripping = threading.Thread(target=drip)
    dripping.start()
    try:
        begun = time.monotonic()
        with pytest.raises(OSError):
            handshake.admit(theirs, credentials)
        assert time.monotonic() - begun < PATIENT
    finally:
        over.set()
        dripping.join()
        ours.close()


# -- what a daemon is answered --------------------------------------------------------------------


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of a daemon that knows the token, and answers its first request so."""
    listener = addresses.listen("127.0.0.1", 0, 1)

    def serve() -> None:
        connection, _ = listener.accept()
        with suppress(OSError), handshake.admit(connection, CREDENTIALS) as channel:
            handshake.frame(channel, 1 << 16)
            answer(channel)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield addresses.own(listener)
    finally:
        thread.join()
        listener.close()


CALLS: list[Callable[[Peer], object]] = [
    lambda peer: peer.inventory(SEALED),
    lambda peer: peer.digests(Digest(0, 1, 0, 128, 64)),
    lambda peer: peer.read((0, 1), 0, memoryview(bytearray(16))),
]


@settings(max_examples=drawn(40), suppress_health_check=[*HealthCheck], derandomize=True)
@given(sent=st.binary(max_size=200), framed=st.booleans(), call=st.sampled_from(CALLS))
@example(sent=b"\x93\x00\xa1\xff\xc0", framed=True, call=CALLS[0])
@example(sent=b"\x93\x00\xa0\x91\x01", framed=True, call=CALLS[1])
@example(sent=b"\xff\xff\xff\xff", framed=False, call=CALLS[0])
def test_any_answer_is_right_or_a_failed_restore(
    sent: bytes, framed: bool, call: Callable[[Peer], object]
) -> None:
    told = struct.pack("<I", len(sent)) + sent if framed else sent
    with (
        answering(lambda channel: channel.sendall(told)) as address,
        closing(Peer(address, CREDENTIALS)) as peer,
        suppress(RestoreFailed),
    ):
        call(peer)


def test_memory_is_taken_as_bytes_come(served: Served) -> None:
    promise = struct.pack("<I", transfers.LONGEST_ANSWER)
    with (
        answering(lambda channel: channel.sendall(promise + b"x")) as address,
        closing(Peer(address, CREDENTIALS)) as peer,
    ):
        tracemalloc.start()
        with pytest.raises(RestoreFailed):
            peer.inventory(SEALED)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most < 16 << 20


def test_an_answer_that_comes_byte_by_byte_has_a_deadline() -> None:
    over = threading.Event()

    def drip(channel: socket.socket) -> None:
        channel.sendall(struct.pack("<I", 1000))
        while not over.wait(0.05):
            channel.sendall(b"x")

    with answering(drip) as address:
        try:
            with (
                closing(Peer(address, CREDENTIALS, within=1.0)) as peer,
                pytest.raises(RestoreFailed, match=r"too slowly|timed out"),
            ):
                peer.inventory(SEALED)
        finally:
            over.set()
