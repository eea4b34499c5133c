"""A helper thread that ends by an error ends in a line, and in a defined state."""

import queue
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from spotelastic_checkpoints.threads import minded
from support.aws.fake_services import CallLog, FakeSqs, cloud_over, fake_aws
from support.clusters.leading_controller import CONFIG
from support.processes.patience import PATIENT

from spotelastic.aws.node.log_shipper import LogShipper
from spotelastic.cloud.port import Delivery
from spotelastic.controller.effects.inbox import Inbox
from spotelastic.controller.loop.controller_loop import HELPERS, Controller

UNHANDLED = "ignore::pytest.PytestUnhandledThreadExceptionWarning"


def fails(name: str) -> None:
    thread = threading.Thread(target=Path.lstat, args=(Path("/nonexistent"),), name=name)
    thread.start()
    thread.join()


@pytest.mark.filterwarnings(UNHANDLED)
def test_only_those_of_the_names_given_are_told_of() -> None:
    before, told = threading.excepthook, list[tuple[str, str]]()
    with minded(("watch", "session"), lambda *each: told.append(each)):
        for name in ("watch /runs/a/", "session", "user"):
            fails(name)
    assert threading.excepthook is before
    assert [name for name, _ in told] == ["watch /runs/a/", "session"]
    assert all(error.startswith("FileNotFoundError: ") for _, error in told)


@pytest.mark.filterwarnings(UNHANDLED)
def test_a_controller_ends_when_it_would_hear_of_nothing_any_more(
    said: list[str],
) -> None:
    spec = replace(CONFIG.spec, etcd=("127.0.0.1:1",))
    controller = Controller(
        replace(CONFIG, spec=spec), cloud_over(fake_aws(sqs=FakeSqs(CallLog())))
    )
    with minded(HELPERS, controller.fail):
        fails("watch /runs/a/")
    assert controller.failed
    controller.run()  # which waits for no etcd any more
    assert "the thread “watch /runs/a/” of this controller ended" in said[0]


DAEMON = """
import sys
from spotelastic_checkpoints.daemon import process
from spotelastic_checkpoints.peers import transfers
transfers.PeerServer._accept = lambda self: {}["no such key"]
sys.exit(process.main())
"""


def test_a_daemon_that_no_peer_can_reach_ends(tmp_path: Path) -> None:
    flags = {
        "socket": tmp_path / "s", "arena": tmp_path / "arena", "storage": tmp_path / "storage",
        "owner": "run", "node": "a",
    }  # fmt: skip
    args = [f"--{name}={value}" for name, value in flags.items()]
    done = subprocess.run(
        [sys.executable, "-c", DAEMON, *args],
        capture_output=True,
        text=True,
        timeout=PATIENT,
        check=False,
    )
    assert done.returncode == 1
    last = (
        "spotelastic: the checkpoint daemon ends: its thread “peers” ended: KeyError: 'no such key'"
    )
    assert done.stderr.splitlines()[-1] == last


@dataclass(frozen=True)
class Item:
    receipt: str


class Odd:
    """An AWS service that answers once as nobody has foreseen."""

    def __init__(self) -> None:
        self.calls = 0
        self.called, self.closed = threading.Event(), threading.Event()
        self.sent: queue.Queue[Any] = queue.Queue()

    def receive(self, seconds: float) -> list[Delivery[str]]:
        self.calls += 1
        if self.calls > 2:
            self.closed.wait(30)
        if self.calls == 1:
            raise KeyError("MessageId")
        return [Delivery("m", "r", "text")]

    def hand_back(self, receipt: str) -> None: ...

    def delete(self, receipt: str) -> None: ...

    def create_log_stream(self, **_: Any) -> None:
        pass

    def put_log_events(self, **told: Any) -> dict[str, Any]:
        self.calls += 1
        self.called.set()
        if self.calls == 1:
            raise TypeError("odd")
        self.sent.put(told["logEvents"])
        return {}


def test_an_inbox_goes_on_after_an_answer_that_nobody_has_foreseen(
    said: list[str],
) -> None:
    sqs, arrived = Odd(), threading.Event()
    inbox = Inbox(sqs, lambda delivery, now: Item(delivery.receipt), arrived.set)
    assert arrived.wait(PATIENT)
    assert inbox.messages == (Item("r"),)
    inbox.close()
    sqs.closed.set()
    assert said == ["KeyError: 'MessageId'"]


def test_lines_of_which_some_cannot_be_sent_go_on_with_others(
    said: list[str],
) -> None:
    logs = Odd()
    shipper = LogShipper(fake_aws(logs=logs), "group")
    shipper.write("n/rank-0", "lost")
    assert logs.called.wait(PATIENT)
    shipper.write("n/rank-0", "sent")
    shipper.close(30)
    assert [each["message"] for each in logs.sent.get(timeout=PATIENT)] == ["sent"]
    assert said == ["logs: TypeError: odd: 1 lines of n/rank-0 are not sent"]
