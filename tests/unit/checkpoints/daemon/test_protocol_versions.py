"""Daemons, agents and workers of two versions of spotelastic meet: real sockets, a real daemon."""

import hmac
import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from queue import Queue

import msgspec
import pytest
from spotelastic_checkpoints import framing, messages
from spotelastic_checkpoints.daemon import daemon_state
from spotelastic_checkpoints.daemon.daemon_state import DaemonState
from spotelastic_checkpoints.errors import BY_NAME, ProtocolRefused, RestoreFailed
from spotelastic_checkpoints.memory.arena import Arena, Slot, SlotState
from spotelastic_checkpoints.peers.handshake import HELLO, MAC, NONCE, VERSION, PeerCredentials
from spotelastic_checkpoints.peers.transfers import Peer, PeerServer
from spotelastic_checkpoints.protocol.connection import Connection
from spotelastic_checkpoints.protocol_version import PROTOCOL, ProtocolVersion
from spotelastic_checkpoints.types import DaemonStatus
from support.processes.patience import PATIENT
from support.saving.daemons_and_workers import Node, cluster, round_info, started

from spotelastic.agent.checkpoints import Checkpoints
from spotelastic.agent.config import AgentConfig
from spotelastic.errors import EnvironmentFailure, UsageError
from spotelastic.model.job import Settings
from spotelastic.training.runtime.session import WorkerSession, open_session

NEXT = ProtocolVersion(PROTOCOL.major + 1, 0)
LATER = ProtocolVersion(PROTOCOL.major, PROTOCOL.minor + 1)
TOKEN = "the cluster's"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with cluster(tmp_path) as (one,):
        yield one


def speak(node: Node, protocol: ProtocolVersion) -> Connection:
    """A client of another version, as the daemon sees it."""
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(PATIENT)
    sock.connect(str(node.socket))
    return Connection(sock, "daemon", protocol=protocol)


# -- on one node ----------------------------------------------------------------------------------


@pytest.mark.parametrize("request_", [messages.GetStatus(), messages.Attach("r", 0, 0), {"x": 1}])
def test_a_client_of_another_major_is_told_so_whatever_it_asks(
    node: Node, request_: object
) -> None:
    with closing(speak(node, NEXT)) as client:
        for _ in range(2):
            with pytest.raises(ProtocolRefused) as refused:
                client.call(request_, object, PATIENT)
            assert str(refused.value) == (
                f"the process that asks speaks protocol {NEXT}, and this checkpoint daemon speaks "
                f"{PROTOCOL}: install the same version of spotelastic on both"
            )
    assert node.agent.status().workers is not None, "others are served as before"


def test_a_client_of_another_minor_is_served(node: Node) -> None:
    with closing(speak(node, LATER)) as client:
        assert client.call(messages.GetStatus(), DaemonStatus, PATIENT) == node.agent.status()


def test_whoever_does_not_greet_is_sent_away(node: Node) -> None:
    sock = socket.socket(socket.AF_UNIX)
    with closing(sock):
        sock.settimeout(PATIENT)
        sock.connect(str(node.socket))
        sock.sendall(framing.frame(1, messages.GetStatus()))
        assert sock.recv(1) == b""
    assert node.agent.status()


def test_a_greeting_costs_no_message_of_its_own(node: Node) -> None:
    """It goes with the first request, and is not answered: to attach takes no longer."""
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        client = Connection(ours, "daemon")
        client.send(messages.GetStatus())
        client.send(messages.GetStatus())
        sent = theirs.recv(1 << 16)
    assert sent.count(b"hello") == 1
    assert len(sent) < 120


def test_an_agent_that_finds_a_daemon_of_another_version_says_so(tmp_path: Path) -> None:
    """Instead of that another daemon has its memory, or of asking it for ever."""
    config = AgentConfig(
        "run", (), "n0", "127.0.0.1", "a", Settings(1, 1), (), tmp_path, tmp_path, tmp_path, ""
    )
    agent = Checkpoints(config, lambda event: None)
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(agent.socket))
        listener.listen()

        def refuse() -> None:
            connection, _ = listener.accept()
            with closing(connection):
                connection.recv(1 << 16)
                error = f"ProtocolRefused: it speaks {PROTOCOL}, this daemon {NEXT}"
                connection.sendall(framing.frame(1, error, None))

        daemon = threading.Thread(target=refuse)
        daemon.start()
        with pytest.raises(EnvironmentFailure, match=f"runs on this node already: .*{NEXT}"):
            agent.open()
        daemon.join(PATIENT)
    assert not daemon.is_alive()


def test_the_error_crosses_the_socket_by_its_name() -> None:
    assert BY_NAME["ProtocolRefused"] is ProtocolRefused


def worker_under(monkeypatch: pytest.MonkeyPatch, agents: str, resume: str = "{}") -> WorkerSession:
    """A worker, as an agent has started it that speaks this protocol; "": one that does not say."""
    told = {"DAEMON": "/none", "ROUND": "r1", "RESUME": resume, "PROTOCOL": agents}
    for name, value in told.items():
        monkeypatch.setenv(f"SPOTELASTIC_{name}", value)
    return open_session(None, None, take_over=False)


@pytest.mark.parametrize("agents", ["", "1", "1.x", str(PROTOCOL), str(LATER)])
def test_a_worker_goes_on_under_an_agent_of_its_own_major(
    monkeypatch: pytest.MonkeyPatch, agents: str
) -> None:
    assert worker_under(monkeypatch, agents).round == "r1"


def test_a_worker_refuses_an_agent_of_another_major_by_a_line_that_names_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before it reads anything else that the agent has said."""
    with pytest.raises(UsageError) as refused:
        worker_under(monkeypatch, str(NEXT), resume="of tomorrow")
    line = str(refused.value)
    assert f"this node's agent speaks protocol {NEXT}" in line
    assert re.search(rf"the script's Python \(.*\) speaks {PROTOCOL}", line)


# -- what is left in shared memory ----------------------------------------------------------------


def test_what_a_daemon_of_another_major_has_left_is_not_taken_up(tmp_path: Path) -> None:
    remembered = DaemonState().begun(round_info("r1", 0, ["n0"], 1, 3))
    daemon_state.keep(tmp_path, remembered)
    assert daemon_state.recall(tmp_path) == remembered
    daemon_state.keep(tmp_path, msgspec.structs.replace(remembered, protocol=LATER))
    assert daemon_state.recall(tmp_path).round == remembered.round
    daemon_state.keep(tmp_path, msgspec.structs.replace(remembered, protocol=NEXT))
    assert daemon_state.recall(tmp_path) == DaemonState()


def test_a_slot_of_another_major_counts_as_empty(node: Node) -> None:
    _, worker = started(node)
    slot = worker.save(5)
    worker.client.leave(clean=True)
    found = Slot(Path(slot.path))
    assert found.state is SlotState.SEALED
    magic = bytes(found.memory[:8])
    assert magic == b"SOPSET%02d" % PROTOCOL.major
    found.memory[:8] = b"SOPSET%02d" % NEXT.major
    assert Slot(Path(slot.path)).state is SlotState.EMPTY
    assert list(Arena(node.arena, 1).sealed()) == []


# -- between nodes --------------------------------------------------------------------------------


def daemon_of_another_version(protocol: ProtocolVersion, said: Queue[bytes]) -> socket.socket:
    """Listens, says what it speaks, and hears the answer."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with closing(connection):
            connection.settimeout(PATIENT)
            assert connection.recv(len(HELLO), socket.MSG_WAITALL) == HELLO
            connection.sendall(VERSION.pack(b"SPOT", *protocol) + os.urandom(NONCE))
            said.put(connection.recv(VERSION.size, socket.MSG_WAITALL))

    threading.Thread(target=serve, daemon=True).start()
    return listener


def test_a_peer_of_another_major_is_refused_and_hears_the_number() -> None:
    said: Queue[bytes] = Queue()
    with closing(daemon_of_another_version(NEXT, said)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(RestoreFailed) as refused:
            Peer(f"127.0.0.1:{port}", PeerCredentials(TOKEN))
    assert f"the checkpoint daemon at 127.0.0.1:{port}: it speaks protocol {NEXT}" in str(
        refused.value
    )
    assert f"this node's checkpoint daemon speaks {PROTOCOL}" in str(refused.value)
    assert said.get(timeout=PATIENT) == VERSION.pack(b"SPOT", *PROTOCOL)


def test_a_client_of_another_major_gets_nothing_and_both_sides_are_named(tmp_path: Path) -> None:
    told: Queue[str] = Queue()
    server = PeerServer(Arena(tmp_path, 1), PeerCredentials(TOKEN), "127.0.0.1", 0, told.put)
    with closing(server):
        host, _, port = server.address.rpartition(":")
        with closing(socket.create_connection((host, int(port)), PATIENT)) as client:
            client.sendall(HELLO)
            found = client.recv(VERSION.size + NONCE, socket.MSG_WAITALL)
            assert VERSION.unpack(found[: VERSION.size]) == (b"SPOT", *PROTOCOL)
            client.sendall(VERSION.pack(b"SPOT", *NEXT))
            assert client.recv(1) == b""
            line = told.get(timeout=PATIENT)
    assert f"it speaks protocol {NEXT}" in line and f"daemon speaks {PROTOCOL}" in line


def test_a_client_of_another_minor_is_let_in(tmp_path: Path) -> None:
    server = PeerServer(Arena(tmp_path, 1), PeerCredentials(TOKEN), "127.0.0.1", 0, print)
    with closing(server):
        host, _, port = server.address.rpartition(":")
        with closing(socket.create_connection((host, int(port)), PATIENT)) as client:
            client.sendall(HELLO)
            theirs = client.recv(VERSION.size + NONCE, socket.MSG_WAITALL)
            mine = VERSION.pack(b"SPOT", *LATER) + os.urandom(NONCE)
            proof = hmac.new(TOKEN.encode(), b"client" + theirs + mine, "sha256").digest()
            client.sendall(mine + proof)
            expected = hmac.new(TOKEN.encode(), b"server" + mine + theirs, "sha256").digest()
            assert client.recv(MAC, socket.MSG_WAITALL) == expected
