"""Real agents through real faults: their event logs replay to the decisions that they made."""

import os
import signal
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.event_files import LogRecord
from support.event_replay import replay
from support.launcher import running
from support.replayed import decisions, differences, logs

from spotelastic.agent.event_log import log
from spotelastic.store.etcd_server.process import EtcdMember, standalone

pytestmark = pytest.mark.faults


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdMember]:
    with standalone(tmp_path / "etcd") as member:
        yield member


@pytest.mark.soak
def test_what_agents_decided_when_a_worker_and_a_node_were_lost_is_decided_again(
    etcd: EtcdMember, tmp_path: Path
) -> None:
    with running(etcd.endpoint, uuid.uuid4().hex, tmp_path, nnodes="1:2") as run:
        run.add("a")
        run.add("b")
        before = run.seals("a", "b")
        os.kill(run.nodes["b"].workers()[0], signal.SIGKILL)
        run.wait(lambda s: s.round and s.round.number > before.number, "a new round")
        run.seals("a", "b")
        run.nodes["b"].kill()  # the agent: it has no time to write anything
        run.trains("a")
        run.nodes["a"].signal(signal.SIGTERM)
        run.nodes["a"].wait()
    written = tmp_path / "logs"
    assert list(differences(written)) == []
    kinds = {each.kind for files in logs(written).values() for one in files for each in one.records}
    assert log.EVENT in kinds and log.STATE not in kinds, "each change has its event"
    told = decisions(written)
    assert told["a"][-1].closed == "" and told["b"][-1].closed is None
    assert any(any("code=-9" in line for line in each.because) for each in told["b"])
    assert any(  # of a worker that was killed the others may tell first
        line.startswith("ReportFailure")
        for each in (*told["a"], *told["b"])
        for line in each.actions
    )
    leads = [line for each in told["a"] for line in each.actions if line.startswith("Lead")]
    assert any("proposed: b was lost" in line for line in leads), leads
    finds_a_changed_decision(written)


def finds_a_changed_decision(written: Path) -> None:
    files = logs(written)["b"]
    number, record = next(
        (number, record)
        for number, record in enumerate(files[-1].records)
        if record.kind == log.DECIDED and any(name == "StartWorkers" for name, _ in record.told[1])
    )
    changed = [*files[-1].records]
    changed[number] = LogRecord(record.kind, record.at, (record.told[0], [], record.told[2]))
    found = list(replay((*files[:-1], replace(files[-1], records=tuple(changed)))))
    assert found[-1].at == record.at
    assert "recorded was nothing, and this version decides StartWorkers" in found[-1].difference
