"""One value of each kind that is stored or sent, as it is written: what the golden files hold.

`python -m support.repo.formats v1.1` (in tests/) writes the files of a new version of the
protocol. It never writes into a folder that is there: see docs/compatibility.md.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import msgspec
from spotelastic_checkpoints import checksummed_json, framing, messages, provenance
from spotelastic_checkpoints.commit.latest import LATEST, Latest
from spotelastic_checkpoints.commit.retention import HOLD, Hold
from spotelastic_checkpoints.commit.tenancy import KEY, Tenant
from spotelastic_checkpoints.commit.verification import Verified
from spotelastic_checkpoints.daemon.daemon_state import DaemonState
from spotelastic_checkpoints.decoders import from_msgpack
from spotelastic_checkpoints.format import metadata
from spotelastic_checkpoints.memory.arena import SlotHeader
from spotelastic_checkpoints.memory.worker_page import Field
from spotelastic_checkpoints.peers import handshake
from spotelastic_checkpoints.peers import messages as peer_messages
from spotelastic_checkpoints.protocol_version import FORMAT
from spotelastic_checkpoints.types import (
    Item,
    Resume,
    TimedValue,
)
from support.places import TESTS
from support.repo import format_values as v

from spotelastic.certificates import Certificate
from spotelastic.controller.accounting.usage import Before, Usage
from spotelastic.controller.etcd.generations import Generation, GenerationClaim
from spotelastic.model.agreement import Proposal, Vote
from spotelastic.model.in_place import REHEARSED
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import (
    Ending,
    Finished,
    Job,
    Reference,
    Settings,
)
from spotelastic.model.measured import Series
from spotelastic.model.notice import Drain, Notice
from spotelastic.model.progress import (
    Event,
    NodeStatus,
    Point,
    Progress,
    Report,
    ReportJob,
    Status,
    Upload,
)
from spotelastic.model.protocol import PROTOCOL
from spotelastic.model.requests.command import Answer, Command
from spotelastic.model.round import (
    Acknowledgement,
    Round,
    RoundEnd,
    RoundRecord,
    SlotOffer,
)
from spotelastic.store import codec

FOLDER = TESTS / "contract" / "formats"


@dataclass(frozen=True)
class Kind:
    """A value that is written, and how it is read."""

    name: str
    """Of its golden file, without the ending; the folder is where it goes."""
    value: Any
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any] | None
    """None: nobody can."""
    text: bool = True
    """The file holds the bytes as they are, and a newline; else in hex, thirty-two to a line."""

    @property
    def file(self) -> str:
        return self.name if self.text else f"{self.name}.hex"

    def read(self, data: bytes) -> bytes:
        """The bytes that the golden file tells of."""
        return data.removesuffix(b"\n") if self.text else bytes.fromhex(data.decode())

    def shown(self, data: bytes) -> bytes:
        if self.text:
            return data + b"\n"
        digits = data.hex()
        return "".join(f"{digits[i : i + 64]}\n" for i in range(0, len(digits), 64)).encode()


def kinds() -> Iterator[Kind]:
    yield from _in_etcd()
    yield from _in_the_bucket()
    yield from _beside_checkpoints()
    yield from _on_a_node()
    yield from _between_nodes()
    yield from _in_memory()


def _stored(name: str, value: Any) -> Kind:
    return Kind(
        f"etcd/{name}.json", value, codec.encode, lambda data: codec.decode(data, type(value))
    )


def _in_etcd() -> Iterator[Kind]:
    """By the key, as in the table of `store/keys.py`."""
    yield from _of_all_nodes()
    yield from _of_a_node()
    yield from _of_a_warned_node()
    yield _stored("history", RoundRecord(v.ROUND, 1700000002.0, 1260, 1700000010.0, 1700000011.0))
    yield _stored("commit", v.COMMIT)
    yield _stored(
        "events",
        Event(
            1700000000.0, "notice", "i-0c will be taken away", "i-0c", {"kind": "spot_interruption"}
        ),
    )


def _of_all_nodes() -> Iterator[Kind]:
    yield _stored("all-round", v.ROUND)
    yield _stored("all-round-in-place", v.ROUND_IN_PLACE)
    yield _stored("all-round-partners", v.ROUND_WITH_PARTNERS)
    yield _stored("all-round-proposed", Round(1, "r", "proposed", v.MEMBERS[:1], "start", ""))
    yield _stored(
        "all-proposal",
        Proposal(
            "p0", "0123456789abcdef", "i-0c leaves", 1260, 1700000120.0, True, 2, v.SCHEDULE, True
        ),
    )
    yield _stored("all-job", Job("failed", 1700000200.0, "rank 2 failed", 1260, v.FAILURE))
    yield _stored("all-ending", Ending("stopped", 1700000200.0, "stopped by command"))
    yield _stored("all-settings", v.SETTINGS)
    yield _stored("all-settings-slow", v.SLOW_SETTINGS)
    yield _stored("all-settings-replicates", v.REPLICATES)
    yield _stored("all-settings-rehearses", v.REHEARSES)
    yield _stored("all-settings-exact", v.EXACT)
    yield _stored("all-settings-keeps-files", Settings(2, 8, outputs=("out",), protocol=PROTOCOL))
    yield _stored("all-reference", Reference(v.NODE, v.SETTINGS, v.PROTOCOL))


def _of_a_node() -> Iterator[Kind]:
    yield _stored("nodes-slow", v.SLOW)
    yield _stored("nodes-progress-measured", v.MEASURED)
    yield _stored("nodes-progress-rests", v.RESTS)
    yield _stored("nodes-progress-logs", v.LOGS)
    yield _stored("nodes-live-typed", v.TYPED)
    yield _stored("nodes-live-prepares", v.PREPARES)
    yield _stored("nodes-failure-broken", v.BROKEN)
    yield _stored("nodes-live", v.NODE)
    yield _stored(
        "nodes-ack",
        Acknowledgement(
            "i-0a",
            "aa00",
            "fedcba9876543210",
            "ready",
            "10.0.0.10:4100",
            (v.SNAPSHOT,),
            v.COMMIT,
            "10.0.0.10:29500",
            4,
            RoundEnd("0123456789abcdef", 1699999990.0, 1250, 1700000000.0),
        ),
    )
    rests = Acknowledgement(
        "i-0a",
        "aa00",
        "00112233445566aa",
        "ready",
        rested="fedcba9876543210",
        standings=v.STANDINGS,
        run_id="8899aabbccddeeff",
    )
    yield _stored("nodes-ack-rests", rests)
    remembers = Acknowledgement(
        "i-0a", "aa00", "00112233445566aa", "ready", ancestry=v.ROUND_INFO.ancestry
    )
    yield _stored("nodes-ack-remembers", remembers)
    yield _stored("nodes-vote", Vote("i-0a", "p0", 1255, 0.25, 1260, 1260, 1260, True, True))
    yield _stored(
        "nodes-progress",
        Progress(
            "i-0a",
            7,
            1260,
            1700000010.0,
            (Point(1259, 2.5, 1700000009.0), Point(1260, None, 1700000010.0)),
            1200,
            3,
            Upload(1250, 512, 1036, 100.0),
            0.25,
            0.01,
            4.5,
            True,
            "in the forward pass",
            True,
        ),
    )
    yield _stored("nodes-snapshots", SlotOffer("fedcba9876543210", "10.0.0.12:4100", (v.SNAPSHOT,)))
    yield _stored("nodes-failure", v.FAILURE)
    yield _stored(
        "nodes-finished",
        Finished("i-0a", "fedcba9876543210", 1700000300.0, 2000, 1700000002.0, 1700000299.0),
    )


def _of_a_warned_node() -> Iterator[Kind]:
    notice = Notice(
        InterruptionKind.SPOT_INTERRUPTION,
        "i-0c",
        "imds",
        1700000000.0,
        1700000000.5,
        1700000120.0,
    )
    yield _stored("nodes-drain", Drain("i-0c", notice))
    reboot = replace(
        notice, kind=InterruptionKind.MAINTENANCE, action="system-reboot", id="instance-event-1"
    )
    yield _stored("nodes-drain-maintenance", Drain("i-0c", reboot))


def _object(name: str, value: Any, kind: Any = None) -> Kind:
    return Kind(
        f"bucket/{name}",
        value,
        msgspec.json.encode,
        lambda data: msgspec.json.decode(data, type=kind or type(value)),
    )


def _in_the_bucket() -> Iterator[Kind]:
    yield _object("job.json", v.SPEC)
    yield _object("job-watched.json", v.WATCHED)
    yield _object("job-moving.json", v.MOVING)
    yield _object(
        "status.json",
        Status(
            "demo",
            "running",
            1700000010.0,
            7,
            1260,
            2.5,
            4,
            1200,
            Upload(1250, 512, 1036, 100.0),
            0.25,
            "i-0x",
            "i-0y",
            "i-0c leaves: 2 nodes",
            (NodeStatus("i-0a", "worker", "training", "us-east-1a", "10.0.0.10", (0, 1)),),
            {"handled": 3},
            "i-0b: in the forward pass",
            1699999999.0,
            ("a warning",),
            v.PROTOCOL,
        ),
    )
    yield _object(
        "status-rehearsed.json", Status("demo", "running", 1700000010.0, rehearsal=v.REHEARSAL)
    )
    told = msgspec.json.decode(msgspec.json.encode(v.REHEARSAL))
    event = Event(1700000000.0, REHEARSED, v.REHEARSAL.line, "i-0a", told)
    yield _object("events.jsonl-line-rehearsed", event)
    yield _object("events.jsonl-line", Event(1700000000.0, "loss", "i-0d is gone", "i-0d"))
    yield _object("curve.json", [Point(1, 9.5, 1.0), Point(2, None, 2.0)], list[Point])
    series = (TimedValue(1700000000.0, 0.1), TimedValue(1700000001.0, None))
    yield _object("measured.json", {"lr": series}, dict[str, Series])
    yield _object(
        "report.json",
        Report(
            ReportJob("succeeded", 2000, 2010),
            (v.INTERRUPTION,),
            0.97,
            10.5,
            3.25,
            9.75,
            1.0,
            "2026-01-01",
            0.5,
            0.1,
            3.75,
            1.1,
        ),
    )
    bill = Usage(
        "i-0a", "g5.xlarge", True, 1.0, None, 0.5, 1.5, "worker", 0.01, True, (Before(0.5, 0.4),)
    )
    yield _object("usage.json", [bill], list[Usage])
    yield _object("command", Command("c0", "scale", 2, 6, v.PROTOCOL))
    yield _object("command-stop", Command("c2", "stop", protocol=v.PROTOCOL, reason="it moves"))
    yield _object("commands.json", Answer("c0", 1700000020.0, "is to have 2 to 6 nodes", False))
    yield _object("etcd-generation.json", Generation(2, "etcd/snapshots/1"))
    yield _object("etcd-member.json", GenerationClaim(2, 1))
    yield _object("certificate", Certificate("an authority", "a certificate", "a key"))


def _beside(name: str, value: Any) -> Kind:
    return Kind(
        f"checkpoints/{name}",
        value,
        checksummed_json.encode,
        lambda data: checksummed_json.decode(data, type(value)),
    )


def _as_is(data: bytes) -> bytes:
    return data


def _like(written: bytes) -> Callable[[bytes], bytes]:
    """Versions without checksums wrote the same pickle, and mean the same."""

    def read(data: bytes) -> bytes:
        pinned = metadata.is_pinned(data) == metadata.is_pinned(written)
        return written if pinned and metadata.agrees(data, written) else data

    return read


def _beside_checkpoints() -> Iterator[Kind]:
    yield _beside(LATEST, Latest("demo", 4, v.COMMIT, "0011223344556677", 2, FORMAT))
    told = Latest("demo", 4, v.COMMIT, "0011223344556677", 2, FORMAT, "8899aabbccddeeff")
    yield _beside(f"{LATEST}-of-a-run", told)
    yield _beside(
        KEY,
        Tenant(
            "j0",
            "g0",
            "demo",
            ("10.0.0.4:2379",),
            "train.py",
            "host",
            "boot pid:[1]",
            42,
            4242,
            1700000000.0,
            True,
            "q0",
            "q0",
            False,
            FORMAT,
        ),
    )
    maker = provenance.Record("train.py", ["--lr", "***"], 42, 1690000000.0, "ended")
    yield _beside(
        provenance.NAME,
        provenance.Record("train.py", [], 43, 1700000000.0, "running", v.COMMIT, maker, FORMAT),
    )
    yield _beside(HOLD, Hold(4, 41))
    yield _beside("manifest.json", v.MANIFEST)
    yield _beside("files-index.json", v.KEPT)
    yield _beside("verified.json", Verified(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)))
    record = metadata.write([v.MANIFEST])
    for name, written in ("", record), ("-pinned", metadata.pinned(record)):
        yield Kind(f"checkpoints/.metadata{name}", written, _as_is, _like(written), text=False)
    yield Kind("checkpoints/.metadata-retired", metadata.TOMBSTONE, _as_is, _as_is, text=False)


def _frame(folder: str, name: str, parts: tuple[Any, ...], read: Callable[[bytes], Any]) -> Kind:
    def body(data: bytes) -> Any:
        (length,) = framing.FRAME.unpack(data[: framing.FRAME.size])
        assert length == len(data) - framing.FRAME.size
        return read(data[framing.FRAME.size :])

    return Kind(f"{folder}/{name}", parts, lambda parts: framing.frame(*parts), body, text=False)


def _reply(folder: str, value: Any) -> Kind:
    def read(body: bytes) -> Any:
        ident, error, result = framing.decode_reply(body)
        return ident, error, from_msgpack(result, type(value))

    return _frame(folder, type(value).__name__, (9, "", value), read)


def _on_a_node() -> Iterator[Kind]:
    """Between the daemon, the agent and the workers."""
    greeting = messages.Greeting(v.PROTOCOL)
    yield _frame("daemon", "Greeting", (0, greeting), lambda b: (0, messages.decode_greeting(b)))
    for request in v.REQUESTS:
        yield _frame("daemon", type(request).__name__, (9, request), messages.decode_request)
    for event in v.EVENTS:

        def pushed(body: bytes) -> Any:
            ident, error, result = framing.decode_reply(body)
            return ident, error, messages.decode_event(result)

        yield _frame("daemon", type(event).__name__, (0, "", event), pushed)
    for answer in v.ANSWERS:
        yield _reply("daemon", answer)
    refusal = (9, "ProtocolRefused: another version", None)
    yield _frame("daemon", "refusal", refusal, lambda b: (*framing.decode_reply(b)[:2], None))
    yield Kind(
        "daemon/SPOTELASTIC_RESUME.json",
        v.FROM_MEMORY,
        msgspec.json.encode,
        lambda data: msgspec.json.decode(data, type=Resume),
    )


def _between_nodes() -> Iterator[Kind]:
    """Between daemons, and their greeting but for what is random in it."""
    inventory = peer_messages.Inventory("0123456789abcdef", 1250, "5e" * 16)
    wait = peer_messages.AwaitOffer("0123456789abcdef", 1240, 50e6)
    digest = peer_messages.Digest(2, 1 << 60, 0, 512, 64)
    for request in (inventory, peer_messages.Read(2, 1 << 60, 64, 512), wait, digest):
        name = type(request).__name__
        yield _frame("peers", name, (0, request), peer_messages.decode_request)

    def shelves(body: bytes) -> Any:
        ident, error, result = framing.decode_reply(body)
        return ident, error, from_msgpack(result, tuple[peer_messages.Shelf, ...])

    def offered(body: bytes) -> Any:
        ident, error, result = framing.decode_reply(body)
        return ident, error, from_msgpack(result, peer_messages.Offer)

    yield _frame("peers", "Offer", (0, "", v.OFFER), offered)
    yield _frame("peers", "Shelf", (0, "", (v.SHELF,)), shelves)
    yield Kind("peers/hello", handshake.HELLO, _as_is, _as_is, text=False)
    yield Kind("peers/by-tls", handshake.BY_TLS, _as_is, _as_is, text=False)
    yield Kind("peers/in-clear", handshake.IN_CLEAR, _as_is, _as_is, text=False)
    yield Kind(
        "peers/version",
        (b"SPOT", *v.PROTOCOL),
        lambda parts: handshake.VERSION.pack(*parts),
        handshake.VERSION.unpack,
        text=False,
    )
    nonces = handshake.VERSION.pack(b"SPOT", *v.PROTOCOL) + bytes(range(16))
    yield Kind(
        "peers/proof",
        (b"client", nonces, nonces),
        lambda parts: handshake.proof_of("a token", *parts),
        None,
        text=False,
    )


def _in_memory() -> Iterator[Kind]:
    """In shared memory, which daemon and workers have mapped, and which outlives both."""
    yield Kind(
        "memory/slot-header",
        v.SLOT_HEADER,
        msgspec.msgpack.encode,
        lambda data: msgspec.msgpack.decode(data, type=SlotHeader),
        text=False,
    )
    yield Kind(
        "memory/slot-index",
        (v.ITEM, v.VALUE),
        msgspec.msgpack.encode,
        lambda data: msgspec.msgpack.decode(data, type=tuple[Item, ...]),
        text=False,
    )
    yield Kind(
        "memory/round.json",
        DaemonState(v.ROUND_INFO, {"fedcba9876543210": 4}, v.PROTOCOL),
        msgspec.json.encode,
        lambda data: msgspec.json.decode(data, type=DaemonState),
    )
    yield Kind(
        "memory/round-ward.json",
        DaemonState(v.ROUND_WITH_WARD, {}, v.PROTOCOL),
        msgspec.json.encode,
        lambda data: msgspec.json.decode(data, type=DaemonState),
    )
    yield Kind(
        "memory/page-words.json",
        {field.name: int(field) for field in Field},
        msgspec.json.encode,
        msgspec.json.decode,
    )


def write(version: str) -> int:
    """The files of a version that has none yet."""
    folder = FOLDER / version
    if folder.exists():
        print(f"{folder} is there: what it holds is never written again", file=sys.stderr)
        return 2
    for kind in kinds():
        path = folder / kind.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(kind.shown(kind.encode(kind.value)))
    return 0


if __name__ == "__main__":
    sys.exit(write(sys.argv[1]))
