"""Daemons that know each other by certificates: real sockets, real certificates, no process."""

import hashlib
import re
import socket
import ssl
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.errors import CheckpointsError, RestoreFailed
from spotelastic_checkpoints.format import encoding, layout
from spotelastic_checkpoints.format.layout import Declaration, Declared, JobLayout
from spotelastic_checkpoints.framing import FRAME
from spotelastic_checkpoints.memory import arena
from spotelastic_checkpoints.memory.arena import Arena, SlotHeader
from spotelastic_checkpoints.peers import handshake
from spotelastic_checkpoints.peers.handshake import PeerCredentials
from spotelastic_checkpoints.peers.messages import Inventory, Shelf
from spotelastic_checkpoints.peers.tls import PeerTls
from spotelastic_checkpoints.peers.transfers import Peer, PeerServer
from spotelastic_checkpoints.restore import sources
from spotelastic_checkpoints.restore.sources import SourceContext
from spotelastic_checkpoints.storage.outage_retry import OutageRetry
from spotelastic_checkpoints.types import Holder, Resume
from support.clusters.local_cloud import until
from support.processes.patience import PATIENT

from spotelastic.certificates import (
    LIFE,
    MEMBER_NAME,
    WORKER_NAME,
    Certificate,
    Subject,
    issue,
    make_authority,
)

HOST = "127.0.0.1"
NOW = datetime.now(UTC)
PART = (9 << 20) + 7
"""Bytes per node: several ranges of a peer, the last one odd."""
WORKER = Subject(WORKER_NAME)


@dataclass(frozen=True)
class Authority:
    """Of one cluster, with files of what it has signed."""

    folder: Path
    own: Certificate = field(default_factory=lambda: make_authority("demo", NOW))

    def write(
        self, name: str, subject: Subject = WORKER, now: datetime = NOW
    ) -> tuple[Path, Path, Path]:
        return issue(self.own, subject, now).write(self.folder / name)

    def credentials(
        self, name: str, subject: Subject = WORKER, now: datetime = NOW, token: str = "ours"
    ) -> PeerCredentials:
        return PeerCredentials(token, PeerTls(*self.write(name, subject, now), name=WORKER_NAME))


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("strange"))


@pytest.fixture(scope="module")
def good(ours: Authority) -> PeerCredentials:
    return ours.credentials("good")


@dataclass
class Served:
    """Starts servers, and hears what they say of others."""

    stack: ExitStack
    folder: Path
    told: list[str] = field(default_factory=list)

    def serve(self, credentials: PeerCredentials, served: Arena | None = None) -> str:
        served = served or Arena(self.folder / "empty", 1)
        server = PeerServer(served, credentials, HOST, 0, self.told.append)
        self.stack.callback(server.close)
        return server.address


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with ExitStack() as stack:
        yield Served(stack, tmp_path)


# -- a state, in the memory of two nodes ----------------------------------------------------------


def content(rank: int) -> bytes:
    block = hashlib.blake2b(bytes([rank])).digest()
    return (block * (PART // len(block) + 1))[:PART]


def plan_of(parts: dict[str, tuple[int, ...]]) -> JobLayout:
    """By node, the parts of one tensor that it has."""
    return layout.plan(
        [
            Declaration(
                rank,
                node,
                tuple(
                    Declared("w", ("w",), "uint8", (2 * PART,), (part * PART,), (PART,))
                    for part in held
                ),
            )
            for rank, (node, held) in enumerate(parts.items())
        ]
    )


def sealed(folder: Path, rank: int, plan: JobLayout) -> Arena:
    held, own = Arena(folder, 1), plan.slots[rank]
    index = arena.encode_index(own.items)
    slot = held.furnish(held.slot_path(0, 0), arena.slot_bytes(own.nbytes, index, 0))
    slot.open()
    slot.write_index(own.nbytes, index)
    for item in own.items:
        data = encoding.tensor_prefix(item.dtype, item.sizes) + content(item.offsets[0] // PART)
        slot.data[item.offset : item.offset + len(data)] = data
    slot.seal(
        SlotHeader(
            owner="test",
            incarnation="r1",
            step=7,
            layout=plan.hash,
            rank=rank,
            world_size=plan.world_size,
            ranks=(rank,),
            whole=False,
            chunks=plan.chunks,
            shared=plan.shared,
            owned=own.owned,
            owned_bytes=own.owned_bytes,
            data_bytes=own.nbytes,
            index_bytes=len(index),
            values=0,
            due=False,
        ),
        [],
    )
    return held


def restored(
    folder: Path, plan: JobLayout, holders: dict[str, str], credentials: PeerCredentials
) -> tuple[dict[int, bytes], list[str]]:
    """The tensor's parts as a node that has nothing brings them, and what it says about it."""

    def no_store() -> Commits:
        raise AssertionError("what peers hold comes from them")

    told: list[str] = []
    around = SourceContext(
        Arena(folder, 1), no_store, "newcomer", credentials, told.append, OutageRetry(told.append)
    )
    there = tuple(Holder(node, address, (0,)) for node, address in holders.items())
    opened = sources.open_source(1, Resume("memory", 7, "r1", plan.hash, there), around)
    items = opened.restore_set.items
    opened.fetcher.fetch([(item.offset, item.offset + item.length) for item in items])
    found = {}
    for item in items:
        data = opened.fetcher.path.read_bytes()[item.offset :][: item.length]
        found[item.offsets[0] // PART] = data[len(encoding.tensor_prefix("uint8", item.sizes)) :]
    opened.fetcher.remove()
    return found, told


def test_two_daemons_bring_a_state_byte_by_byte(
    tmp_path: Path, served: Served, good: PeerCredentials, ours: Authority
) -> None:
    plan = plan_of({"n0": (0,), "n1": (1,)})
    holders = {
        node: served.serve(ours.credentials(node), sealed(tmp_path / node, rank, plan))
        for rank, node in enumerate(("n0", "n1"))
    }
    found, told = restored(tmp_path / "new", plan, holders, good)
    assert found == {0: content(0), 1: content(1)}
    assert not told
    assert not served.told


def test_a_range_is_never_copied_as_a_whole(
    tmp_path: Path, served: Served, good: PeerCredentials
) -> None:
    plan = plan_of({"n0": (0,)})
    address = served.serve(good, sealed(tmp_path / "n0", 0, plan))
    target = bytearray(4 << 20)
    with closing(Peer(address, good)) as peer:
        (shelf,) = peer.inventory(Inventory("r1", 7, plan.hash))
        file, offset = (0, shelf.generation), shelf.items[0].offset + 4096
        tracemalloc.start()
        try:
            peer.read(file, offset, memoryview(target))
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert bytes(target) in content(0)
    assert most < 1 << 20, f"{most:,} bytes for a range of {len(target):,}"


# -- who is not let in ----------------------------------------------------------------------------

Choice = Callable[[Authority, Authority], PeerCredentials]


def well(ours: Authority, _: Authority) -> PeerCredentials:
    return ours.credentials("good")


def in_clear(*_: Authority) -> PeerCredentials:
    return PeerCredentials("ours")


def expired(ours: Authority, _: Authority) -> PeerCredentials:
    return ours.credentials("expired", now=NOW - LIFE * 1.1)


def not_ours(_: Authority, strange: Authority) -> PeerCredentials:
    return strange.credentials("strange")


def of_a_member(ours: Authority, _: Authority) -> PeerCredentials:
    return ours.credentials("member", Subject(MEMBER_NAME, (HOST,)))


def another_token(ours: Authority, _: Authority) -> PeerCredentials:
    return ours.credentials("good", token="another")


@pytest.mark.parametrize(
    ("server", "client", "client_says", "server_says"),
    [
        (
            well,
            in_clear,
            "it speaks TLS only, and this node has no cert",
            "it does not speak TLS: has it been",
        ),
        (in_clear, well, r"it does not speak TLS 1.3 \(wrong version number", "it speaks TLS only"),
        (expired, well, "its certificate: certificate has expired", "not accept .*: certificate e"),
        (not_ours, well, "its certificate: .*certificate .*good/ca.pem", "not accept .*unknown ca"),
        (well, not_ours, "its certificate: .*certificate ", "not accept .*unknown ca"),
        (of_a_member, well, "is one of 'spotelastic etcd member', not of 'spotelastic worker'", ""),
        (well, another_token, "is the token the same", "it does not know this cluster's token"),
        (
            in_clear,
            lambda *_: PeerCredentials("another"),
            "is the token the same",
            "not know .* token",
        ),
    ],
)
def test_each_side_says_why_and_the_next_holder_brings_it_all(
    tmp_path: Path,
    served: Served,
    ours: Authority,
    strange: Authority,
    server: Choice,
    client: Choice,
    client_says: str,
    server_says: str,
) -> None:
    asking = client(ours, strange)
    plan = plan_of({"n0": (0, 1), "n1": (0, 1)})
    holders = {
        "n0": served.serve(server(ours, strange), sealed(tmp_path / "n0", 0, plan)),
        "n1": served.serve(asking, sealed(tmp_path / "n1", 1, plan)),
    }
    found, (told,) = restored(tmp_path / "new", plan, holders, asking)
    assert found == {0: content(0), 1: content(1)}
    assert told.startswith("no snapshot from node n0: ")
    assert holders["n0"] in told
    assert re.search(client_says, told)
    if server_says:
        until(lambda: served.told)
        assert re.search(f"^{HOST} gets no snapshots from .*: .*{server_says}", served.told[0])


@pytest.mark.parametrize(
    ("client", "client_says", "server_says"),
    [
        (expired, "not accept .*: certificate expired", "its certificate: certificate has expired"),
        (of_a_member, "the connection was closed", "is one of 'spotelastic etcd member'"),
    ],
)
def test_whom_nobody_lets_in_is_told_so(
    tmp_path: Path,
    served: Served,
    ours: Authority,
    strange: Authority,
    client: Choice,
    client_says: str,
    server_says: str,
) -> None:
    plan = plan_of({"n0": (0, 1)})
    address = served.serve(ours.credentials("good"), sealed(tmp_path / "n0", 0, plan))
    with pytest.raises(RestoreFailed, match=f"step 7 .* {address}: .*{client_says}"):
        restored(tmp_path / "new", plan, {"n0": address}, client(ours, strange))
    until(lambda: served.told)
    assert re.search(server_says, served.told[0])


def test_a_refusal_is_said_once_until_the_host_is_let_in(
    served: Served, good: PeerCredentials
) -> None:
    address = served.serve(good)

    def fail(credentials: PeerCredentials) -> None:
        with pytest.raises(RestoreFailed):
            Peer(address, credentials)

    wrong = PeerCredentials("another", good.tls)
    for _ in range(3):
        fail(wrong)
    until(lambda: len(served.told) == 1)
    with closing(Peer(address, good)) as peer:
        assert peer.inventory(Inventory("r1", 7, "")) == ()
    fail(wrong)
    until(lambda: len(served.told) == 2)
    assert len(set(served.told)) == 1


def test_nothing_older_than_tls_1_3_and_nobody_without_a_certificate(
    served: Served, good: PeerCredentials
) -> None:
    address = served.serve(good)
    assert good.tls is not None
    old = ssl.create_default_context(cafile=good.tls.cacert)
    old.check_hostname = False
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), PATIENT) as connection,
        pytest.raises(ssl.SSLError, match="PROTOCOL"),
    ):
        old.wrap_socket(connection)
    nobody = ssl.create_default_context(cafile=good.tls.cacert)
    nobody.check_hostname = False
    with (
        socket.create_connection((host, int(port)), PATIENT) as connection,
        nobody.wrap_socket(connection) as channel,
        pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"),
    ):
        channel.recv(1)


# -- deadlines, and files that change -------------------------------------------------------------


@pytest.mark.parametrize("secured", [True, False])
def test_who_says_nothing_is_not_waited_for(
    served: Served, good: PeerCredentials, secured: bool
) -> None:
    credentials = replace(good if secured else PeerCredentials("ours"), within=0.1)
    with socket.create_server((HOST, 0)) as silent, pytest.raises(RestoreFailed, match="timed out"):
        Peer(f"{HOST}:{silent.getsockname()[1]}", credentials)
    host, _, port = served.serve(credentials).rpartition(":")
    with socket.create_connection((host, int(port)), PATIENT) as connection:
        assert connection.recv(1) == b"", "and then it hangs up"
    assert not served.told, "it may have been anybody"


def test_who_sends_too_slowly_is_not_waited_for_either() -> None:
    one, other = socket.socketpair()
    with one, other:
        other.sendall(b"12")
        with pytest.raises(TimeoutError, match="too slowly"):
            handshake.exactly(one, 3, deadline=0.0)


def test_renewed_certificates_count_from_the_next_connection_on(
    served: Served, good: PeerCredentials, ours: Authority
) -> None:
    address = served.serve(ours.credentials("renewed", now=NOW - LIFE * 1.1))
    with pytest.raises(RestoreFailed, match="certificate has expired"):
        Peer(address, good)
    ours.write("renewed")
    with closing(Peer(address, good)) as peer:
        assert peer.inventory(Inventory("r1", 7, "")) == tuple[Shelf, ...]()


def test_files_that_do_not_fit_yet_leave_the_ones_before_in_force(
    served: Served, good: PeerCredentials, ours: Authority
) -> None:
    files = ours.write("replaced")
    assert good.tls is not None
    address = served.serve(PeerCredentials("ours", PeerTls(*files, name=WORKER_NAME)))
    for torn in (ours.write("other")[2].read_bytes(), b""):
        files[2].write_bytes(torn)
        Peer(address, good).close()
    files[2].unlink()
    Peer(address, good).close()


@pytest.mark.parametrize(
    ("which", "text", "said"),
    [
        (0, None, "No such file"),
        (0, b"nothing", "no certificate or crl found"),
        (1, b"", "no certificate|pem lib|no start line"),
        (2, b"another", "key values mismatch"),
    ],
)
def test_files_that_cannot_be_used_are_refused_by_name(
    ours: Authority, which: int, text: bytes | None, said: str
) -> None:
    files = ours.write("broken")
    if text is None:
        files[which].unlink()
    else:
        another = ours.write("other")[which].read_bytes()
        files[which].write_bytes(another if text == b"another" else text)
    with pytest.raises(CheckpointsError, match=said) as refused:
        PeerTls(*files)
    assert str(files[which]) in str(refused.value)


def test_a_request_that_is_too_long_ends_an_encrypted_connection(
    served: Served, good: PeerCredentials
) -> None:
    host, _, port = served.serve(good).rpartition(":")
    with closing(handshake.greet(socket.create_connection((host, int(port))), good)) as channel:
        channel.sendall(FRAME.pack(1 << 30))
        assert channel.recv(1) == b""
