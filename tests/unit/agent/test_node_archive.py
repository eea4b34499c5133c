"""What a node tells of itself for a bug report, when it is asked and as it ends: no secret."""

import io
import json
import queue
import tarfile
import zlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.processes.patience import PATIENT

from spotelastic.agent.config import AgentConfig
from spotelastic.agent.event_log.dumper import Dumper
from spotelastic.agent.event_log.log import EventLog, log_file
from spotelastic.agent.event_log.node_archive import pack
from spotelastic.agent.observe import observe
from spotelastic.agent.state.events import SessionLost
from spotelastic.agent.state.values import NEW
from spotelastic.agent.watches import StoreChanged
from spotelastic.errors import Unavailable
from spotelastic.model.job import Failure, Job, Settings
from spotelastic.model.requests.dump import DumpRequest
from spotelastic.rendezvous.view import fold
from spotelastic.store.codec import encode
from spotelastic.store.keys import Keys
from spotelastic.store.port import Change, Reset, StoredValue, WatchItem

KEYS = Keys("run")
NODE, SECRET, TOKEN, VALUE = "i-0a", 's3cr3t "of" the user', "token-of-the-daemons", "user:pw@db/7"
KEY = "AKIAIOSFODNN7EXAMPLE"

Sent = queue.SimpleQueue[tuple[str, bytes]]


class Node:
    """A node's event log and dumper, with what they are given on a node."""

    def __init__(self, folder: Path, sent: Sent, **changes: Any) -> None:
        self.config = AgentConfig(
            run=KEYS.run, endpoints=(), node=NODE, address="10.0.0.4", zone="z", spot=True,
            settings=Settings(1, 2), command=("train.py", SECRET), workdir=folder,
            state=folder, shm=folder, storage="", token=TOKEN, secrets=(SECRET,),
            env={"API": SECRET, "DATABASE": VALUE, "MODE": "started"},
            put=lambda name, data: sent.put((name, data)),
        )  # fmt: skip
        self.config = replace(self.config, **changes)
        path = log_file(folder / "logs", NODE)
        secrets = (*self.config.secrets, TOKEN)
        self.log = EventLog(path, KEYS, NODE, secrets=secrets)
        self.dumper = Dumper(self.config, self.log)
        self.told: list[StoreChanged] = []

    def deliver(self, *items: WatchItem, prefix: str = KEYS.all) -> None:
        self.dumper.watching(self.told.append)(StoreChanged(prefix, items))
        seen = fold(self.log.seen, items, KEYS, 1.0, prefix)
        self.log.read(self.told[-1], 1.0, seen)


def value(key: str, of: object, revision: int = 2) -> StoredValue:
    return StoredValue(key, encode(of), revision, revision)


def asked(id: str, node: str = "", revision: int = 2) -> Change:
    return Change(KEYS.dump, value(KEYS.dump, DumpRequest(id, node), revision), revision)


def contents(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        files = ((each.name, tar.extractfile(each)) for each in tar)
        return {name: file.read() for name, file in files if file is not None}


@pytest.fixture
def sent() -> Sent:
    return queue.SimpleQueue()


def planted(folder: Path) -> None:
    """Secrets wherever they might come from on a node."""
    logs = folder / "logs"
    (logs / "0001").mkdir(parents=True)
    (logs / "daemon.log").write_text(f"the daemon was given {TOKEN}\n")
    (logs / "0001" / "rank-0.log").write_text(f"connects to {VALUE}\nlogs in with {SECRET}\n")
    (logs / "0001" / "error-0.json").write_text(json.dumps({"message": SECRET, "key": KEY}))
    for number in range(2, 6):
        (logs / f"{number:04d}").mkdir()
        (logs / f"{number:04d}" / "rank-0.log").write_text(f"{VALUE} {KEY}\n" * 10_000)


def secrets_in(files: Iterable[bytes]) -> list[str]:
    forms = [*(SECRET, TOKEN, VALUE, KEY), json.dumps(SECRET)[1:-1]]
    return [form for form in forms for data in files if form.encode() in data]


def test_an_archive_has_the_state_and_the_logs_and_no_secret(tmp_path: Path, sent: Sent) -> None:
    planted(tmp_path)
    node = Node(tmp_path, sent)
    failure = Failure("f", NODE, "r", 0, 0, 1.0, 1, VALUE, f"Traceback\n{SECRET}\n" + 5000 * "x ")
    large = zlib.compress(msgspec.json.encode(failure))
    node.deliver(Reset((StoredValue(KEYS.failure(NODE), large, 1, 1),), 1), prefix=KEYS.nodes)
    event = SessionLost(f"etcd at {VALUE} is gone")
    node.log.observed(event, 1.0, observe(NEW, event, 1.0))
    with node.log:
        pass
    files = contents(pack(node.config, node.log, "a test"))
    assert secrets_in(files.values()) == []
    assert {name for name in files if not name.startswith("logs/")} == {
        *("node.json", "state.json", "run.json", "stacks.txt", f"events/agent-{NODE}.events"),
    }
    assert files["logs/daemon.log"] == b"the daemon was given ***\n"
    rounds = {name.split("/")[1] for name in files if name.count("/") == 2}
    assert rounds == {"0003", "0004", "0005"}, "the newest"
    newest = files["logs/0005/rank-0.log"]
    assert newest.startswith(b"[") and b"bytes before]" in newest and len(newest) < 200_000
    about = json.loads(files["node.json"])
    assert about["variables"] == ["API", "DATABASE", "MODE"]
    assert {"spotelastic", "python", "kernel", "torch"} <= about["versions"].keys()
    assert b"test_node_archive.py" in files["stacks.txt"]
    log = [json.loads(line) for line in files[f"events/agent-{NODE}.events"].splitlines()]
    opened, failed, event, ended = ((each.keys() - {"at"}).pop() for each in log)
    assert (opened, failed, event, ended) == ("opened", "store", "event", "ended")


def test_a_request_is_answered_once_by_the_node_that_is_meant(tmp_path: Path, sent: Sent) -> None:
    node = Node(tmp_path, sent)
    node.deliver(Reset((value(KEYS.dump, DumpRequest("before its start")),), 1))
    node.deliver(asked("one"), asked("one", revision=3))
    assert sent.get(timeout=PATIENT)[0] == f"dumps/one/{NODE}.tar.gz"
    node.deliver(asked("of another node", "i-0b", 4), asked("two", NODE, 5))
    assert sent.get(timeout=PATIENT)[0] == f"dumps/two/{NODE}.tar.gz"
    # etcd is back after a while, in which somebody has asked; then again, with the same request.
    for _ in range(2):
        node.deliver(Reset((value(KEYS.dump, DumpRequest("three"), 6),), 6))
    node.deliver(asked("four", revision=7))
    names = {sent.get(timeout=PATIENT)[0] for _ in range(2)}
    assert names == {f"dumps/{id}/{NODE}.tar.gz" for id in ("three", "four")}
    assert sent.empty() and len(node.told) == 6, "and the agent is told of all of it"


def test_an_agent_that_ends_leaves_an_archive_unless_the_job_succeeded(
    tmp_path: Path, sent: Sent
) -> None:
    failed, succeeded = Node(tmp_path / "1", sent), Node(tmp_path / "2", sent)
    failed.deliver(Reset((value(KEYS.job, Job("failed", 1.0, "rank 0 failed")),), 1))
    succeeded.deliver(Reset((value(KEYS.job, Job("succeeded", 1.0)),), 1))
    for node in (failed, succeeded):
        with node.dumper, node.log:
            pass
    name, data = sent.get(timeout=PATIENT)
    assert name == f"dumps/last/{NODE}.tar.gz"
    assert json.loads(contents(data)["node.json"])["why"] == "the agent has ended"
    assert sent.empty()
    with pytest.raises(RuntimeError), succeeded.dumper:
        raise RuntimeError
    data = sent.get(timeout=PATIENT)[1]
    assert json.loads(contents(data)["node.json"])["why"] == "the agent ended by RuntimeError"


def test_what_a_killed_agent_has_written_is_sent_by_the_next_one(
    tmp_path: Path, sent: Sent
) -> None:
    Node(tmp_path, sent)  # its log is not closed
    with Node(tmp_path, sent).dumper:
        name, data = sent.get(timeout=PATIENT)
    assert name == f"dumps/last/{NODE}.tar.gz"
    files = contents(data)
    assert json.loads(files["node.json"])["why"] == "the agent before this one was killed"
    assert f"events/agent-{NODE}.events.1" in files
    sent.get(timeout=PATIENT)


def test_trouble_with_the_bucket_is_told_and_no_matter(
    tmp_path: Path, sent: Sent, said: list[str]
) -> None:
    def refuse(name: str, data: bytes) -> None:
        raise Unavailable("S3 does not answer")

    with Node(tmp_path / "1", sent, put=refuse).dumper:
        pass
    assert said == [f"dumps/last/{NODE}.tar.gz could not be written: S3 does not answer"]
    with Node(tmp_path / "2", sent, put=None).dumper:  # no cluster
        pass
    assert len(said) == 1 and sent.empty()


def test_a_file_that_cannot_be_read_does_not_keep_the_others_away(
    tmp_path: Path, sent: Sent
) -> None:
    planted(tmp_path)
    (tmp_path / "logs" / "daemon.log").unlink()
    (tmp_path / "logs" / "daemon.log").symlink_to(tmp_path)
    node = Node(tmp_path, sent)
    files = contents(pack(node.config, node.log, "a test"))
    assert b"IsADirectoryError" in files["logs/daemon.log.error"]
    assert "logs/0005/rank-0.log" in files
