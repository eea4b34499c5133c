"""Restores from other nodes: where one dies, hangs or lies in the middle, the next one fills in."""

import hmac
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from spotelastic_checkpoints.errors import RestoreFailed
from spotelastic_checkpoints.format.layout import JobLayout
from spotelastic_checkpoints.framing import FRAME, frame
from spotelastic_checkpoints.memory.arena import Arena
from spotelastic_checkpoints.peers import handshake, transfers
from spotelastic_checkpoints.peers.handshake import PeerCredentials
from spotelastic_checkpoints.peers.messages import Read
from spotelastic_checkpoints.peers.transfers import PeerServer
from spotelastic_checkpoints.types import Branch, Holder, Resume
from support.saving.daemons_and_workers import (
    TOKEN,
    Node,
    Worker,
    cluster,
    fetched,
    is_content_of,
    plan_of,
    round_info,
)

pytestmark = pytest.mark.faults


class Faulty(PeerServer):
    """Serves the slots of a real node, until it is asked for bytes of them."""

    def __init__(self, arena: Arena, fault: str) -> None:
        self._fault = fault
        self.reads = 0
        self.over = threading.Event()
        super().__init__(arena, PeerCredentials(TOKEN), "127.0.0.1", 0)

    def _send(self, connection: socket.socket, ident: int, request: Read) -> str:
        self.reads += 1
        slot = self._slot(request)
        data = bytearray(slot.data[request.offset :][: request.length])
        match self._fault:
            case "lies":
                data[len(data) // 2] ^= 1
            case "overwritten":
                slot.open()
                return super()._send(connection, ident, request)
            case _:
                del data[len(data) // 2 :]
        connection.sendall(frame(ident, "", request.length))
        connection.sendall(data)
        if self._fault == "lies":
            return self._checksum(slot, request)
        if self._fault == "hangs":
            self.over.wait(60)
        raise ConnectionError


def sealed_on(nodes: Sequence[Node], step: int) -> JobLayout:
    """Two nodes that hold a whole step of a round of both."""
    plan = plan_of(2, 1)
    for slot, node in enumerate(nodes):
        node.begin(round_info("r1", slot, ["n0", "n1"], 1, 0))
        worker = Worker(str(node.socket), "r1", slot, 0, plan)
        worker.save(step)
        worker.client.leave(clean=True)
        node.agent.end()
    return plan


@contextmanager
def filled(tmp_path: Path, fault: str, *, alone: bool) -> Iterator[tuple[Node, Resume, Faulty]]:
    """A node to be filled with a step that a faulty holder has, and a good one unless `alone`."""
    with cluster(tmp_path, count=3, storage=str(tmp_path / "never")) as nodes:
        plan = sealed_on(nodes[:2], 7)
        faulty = Faulty(Arena(nodes[0].arena, 1), fault)
        holders = [Holder("n0", faulty.address, (0,))]
        if not alone:
            holders.append(Holder("n1", nodes[1].agent.status().listen, (1,)))
        newcomer = nodes[2]
        newcomer.begin(round_info("r2", 2, ["n0", "n1", "n2"], 1, 0, lineage=[Branch("r1", 7)]))
        try:
            yield newcomer, Resume("memory", 7, "r1", plan.hash, tuple(holders)), faulty
        finally:
            faulty.over.set()
            faulty.close()
    assert not (tmp_path / "never" / "LATEST").exists()


@pytest.mark.parametrize("fault", ["dies", "lies", "hangs", "overwritten"])
def test_what_one_holder_does_not_bring_the_next_one_does(tmp_path: Path, fault: str) -> None:
    with filled(tmp_path, fault, alone=False) as (node, resume, faulty):
        worker = Worker(str(node.socket), "r2", 2, 0, plan_of(3, 1))
        assert is_content_of(fetched(worker.client, resume), 7)
        assert faulty.reads
        worker.client.leave(clean=True)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("dies", "the connection was closed$"),
        ("lies", "changed on their way"),
        ("overwritten", "has been overwritten"),
    ],
)
def test_a_last_holder_that_fails_is_named_and_leaves_nothing(
    tmp_path: Path, fault: str, said: str
) -> None:
    with filled(tmp_path, fault, alone=True) as (node, resume, faulty):
        worker = Worker(str(node.socket), "r2", 2, 0, plan_of(3, 1))
        with pytest.raises(RestoreFailed, match=said) as failed:
            fetched(worker.client, resume)
        assert faulty.address in str(failed.value)
        assert not list(node.arena.glob("restore-*"))
        worker.client.leave(clean=True)


def test_a_token_is_compared_in_constant_time_and_never_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[bytes, bytes]] = []
    honest = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return honest(one, other)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    server = PeerServer(Arena(tmp_path, 1), PeerCredentials(TOKEN), "127.0.0.1", 0)
    try:
        with pytest.raises(RestoreFailed) as refused:
            transfers.Peer(server.address, PeerCredentials("guessed"))
        assert TOKEN not in str(refused.value)
        assert "guessed" not in str(refused.value)
        transfers.Peer(server.address, PeerCredentials(TOKEN)).close()
    finally:
        server.close()
    # Both sides, and never the token itself: a MAC over what both have drawn.
    assert len(compared) == 3
    assert {len(value) for pair in compared for value in pair} == {handshake.MAC}


def test_a_request_that_is_too_long_ends_the_connection(tmp_path: Path) -> None:
    server = PeerServer(Arena(tmp_path, 1), PeerCredentials(TOKEN), "127.0.0.1", 0)
    try:
        host, _, port = server.address.rpartition(":")
        connection = socket.create_connection((host, int(port)))
        with handshake.greet(connection, PeerCredentials(TOKEN)) as channel:
            channel.sendall(FRAME.pack(transfers.LONGEST_REQUEST + 1))
            assert channel.recv(1) == b""
    finally:
        server.close()


def test_a_node_without_the_save_is_filled_by_two_peers(tmp_path: Path) -> None:
    with cluster(tmp_path, count=3, storage=str(tmp_path / "never")) as nodes:
        plan = sealed_on(nodes[:2], 7)
        holders = tuple(
            Holder(node.name, node.agent.status().listen, (rank,))
            for rank, node in enumerate(nodes[:2])
        )
        resume = Resume("memory", 7, "r1", plan.hash, holders)
        newcomer = nodes[2]
        newcomer.begin(round_info("r2", 2, ["n0", "n1", "n2"], 1, 0, lineage=[Branch("r1", 7)]))
        worker = Worker(str(newcomer.socket), "r2", 2, 0, plan_of(3, 1))
        restored = fetched(worker.client, resume)
        assert is_content_of(restored, 7)
        worker.client.restored(restored.id)
        assert not list(newcomer.arena.glob("restore-*"))

        # With one holder gone the other still has everything.
        nodes[0].kill()
        again = fetched(worker.client, resume)
        assert is_content_of(again, 7)
        worker.client.leave(clean=True)
        assert not (tmp_path / "never" / "LATEST").exists()


def test_a_peer_with_another_token_gets_nothing(tmp_path: Path) -> None:
    with cluster(tmp_path, count=2) as [holder, stranger]:
        plan = plan_of(1, 1)
        holder.begin(round_info("r1", 0, ["n0"], 1, 0))
        worker = Worker(str(holder.socket), "r1", 0, 0, plan)
        worker.save(1)
        worker.client.leave(clean=True)
        stranger.stop()
        stranger.token = "guessed"
        stranger.start()
        stranger.begin(round_info("r2", 0, ["n1"], 1, 0))
        newcomer = Worker(str(stranger.socket), "r2", 0, 0, plan)
        holders = (Holder("n0", holder.agent.status().listen, (0,)),)
        with pytest.raises(RestoreFailed, match="token"):
            fetched(newcomer.client, Resume("memory", 1, "r1", plan.hash, holders))
        newcomer.client.leave(clean=True)


def test_two_halves_at_the_same_step_are_never_mixed(tmp_path: Path) -> None:
    with cluster(tmp_path, count=2) as [one, other]:
        plan = plan_of(2, 1)
        for slot, (node, incarnation) in enumerate([(one, "half-a"), (other, "half-b")]):
            node.begin(round_info(incarnation, slot, ["n0", "n1"], 1, 0))
            worker = Worker(str(node.socket), incarnation, slot, 0, plan)
            worker.save(9)
            worker.client.leave(clean=True)
        one.begin(round_info("r2", 0, ["n0"], 1, 0, lineage=[Branch("half-a", 9)]))
        worker = Worker(str(one.socket), "r2", 0, 0, plan_of(1, 1))
        holders = (Holder("n1", other.agent.status().listen, (1,)),)
        with pytest.raises(RestoreFailed):
            fetched(worker.client, Resume("memory", 9, "half-c", plan.hash, holders))
        # The newest save off the lineage is the first to be overwritten, never the one on it.
        worker.client.leave(clean=True)
