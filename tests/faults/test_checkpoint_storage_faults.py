"""Stores that fail, truncate or are away: saves wait, training goes on, and what is committed in
the end is complete."""

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.errors import RestoreFailed
from spotelastic_checkpoints.messages import Committed, DaemonEvent, SaveFailed
from spotelastic_checkpoints.storage.open import open_storage
from spotelastic_checkpoints.storage.parts import WHOLE
from spotelastic_checkpoints.types import Commit, Resume, Schedule
from support.draws import soaked
from support.processes.patience import PATIENT, eventually
from support.saving.daemons_and_workers import (
    Worker,
    cluster,
    fetched,
    is_content_of,
    plan_of,
    round_info,
    started,
    under_agent,
)
from support.saving.faulty_s3 import Fault, FaultyS3
from support.saving.storage_rules import (
    committed,
    never_went_back,
    nothing_is_half_uploaded,
    verified,
)
from support.saving.upload_pipeline import ONE_TENSOR_A_FILE, run, sealed

import spotelastic as se

pytestmark = [pytest.mark.faults, pytest.mark.every_turn]

COMMITS, UPLOADS = 6, 40
"""More than nodes make by chance, of so many uploads, that do not choose the same steps."""


@pytest.fixture
def s3(s3_endpoint: str, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:
    with FaultyS3(s3_endpoint, f"s3://{bucket}/run") as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy


def test_a_store_that_comes_back_gets_the_newest_save(tmp_path: Path, s3: FaultyS3) -> None:
    with cluster(tmp_path, storage=s3.url) as [node]:
        epoch, worker = started(node)
        worker.save(1)
        assert worker.client.flush(PATIENT)
        s3.away = True
        for step in range(2, 12):
            worker.step(step)
        eventually(lambda: node.agent.status().error != "")
        assert max(s.step for s in node.agent.status().snapshots) == 11, "training went on"
        s3.away = False
        eventually(lambda: node.agent.status().commit == Commit(epoch, 11))
        assert committed(s3.url) == Commit(epoch, 11)
        eventually(lambda: node.agent.status().error == "")
        worker.client.leave(clean=True)


@pytest.mark.soak
@pytest.mark.parametrize("slots", [1, 2])
def test_while_the_store_is_away_few_slots_take_every_save(
    slots: int, tmp_path: Path, s3: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most of them are not to be committed, and none of those that are has a slot to wait in."""
    monkeypatch.setenv("SPOTELASTIC_SLOTS", str(slots))
    with cluster(tmp_path, storage=s3.url) as [node]:
        events: list[DaemonEvent] = []
        node.agent.subscribe(events.append)
        epoch = node.agent.claim("test", timeout=PATIENT).epoch
        schedule = Schedule(1, 20)
        node.begin(round_info("r1", 0, [node.name], 1, epoch, schedule=schedule))
        worker = Worker(str(node.socket), "r1", 0, 0, plan_of(1, 1))
        s3.away = True
        worker.save(1, due=True)
        eventually(lambda: node.agent.status().error != "")
        for step in range(2, 8):
            worker.save(step)
        assert max(s.step for s in node.agent.status().snapshots) == 7
        s3.away = False
        eventually(lambda: node.agent.status().commit is not None)
        assert committed(s3.url) == Commit(epoch, 7), "the newest, in place of the first"
        assert is_content_of(fetched(worker.client, Resume("store", 7, epoch=epoch)), 7)
        worker.save(20)
        assert worker.client.flush(PATIENT)
        assert verified(s3.url) == [Commit(epoch, 7), Commit(epoch, 20)]
        assert len([event for event in events if isinstance(event, SaveFailed)]) == 1, "the outage"
        worker.client.leave(clean=True)


@pytest.mark.soak
def test_nodes_whose_uploads_take_longer_than_the_schedule_allows_commit_all_the_same(
    tmp_path: Path, s3: FaultyS3, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with a pace of its own: they must send the same steps."""
    s3.shard_takes = 0.3
    with (
        FaultyS3(s3_endpoint, s3.url) as slower,
        cluster(tmp_path, count=2, storage=s3.url) as nodes,
    ):
        slower.shard_takes = 0.45
        nodes[1].stop()
        monkeypatch.setenv("AWS_ENDPOINT_URL", slower.endpoint)
        nodes[1].start()
        epoch = nodes[0].agent.claim("test", timeout=PATIENT).epoch
        steps = set[int]()
        workers = []
        for rank, node in enumerate(nodes):
            node.agent.subscribe(
                lambda event: steps.add(event.step) if isinstance(event, Committed) else None
            )
            node.begin(round_info("r1", rank, ["n0", "n1"], 1, epoch))
            workers.append(Worker(str(node.socket), "r1", rank, 0, plan_of(2, 1)))
        last = 0
        while len(steps) < COMMITS and len(sent(s3)) < UPLOADS:
            last += 1
            for worker in workers:
                worker.step(last)
            time.sleep(0.03)  # which a step takes
        assert len(steps) >= COMMITS, f"of {sent(s3)} these were committed: {sorted(steps)}"
        for worker in workers:
            worker.save(last + 1, due=True)
        assert all(worker.client.flush(PATIENT) for worker in workers)
        assert committed(s3.url) == Commit(epoch, last + 1)
        for worker in workers:
            worker.client.leave(clean=True)


def sent(s3: FaultyS3) -> list[int]:
    """The steps that a node has begun to upload."""
    found = (re.match(r"PUT .*/step-(\d+)/.*\.distcp", request) for request in [*s3.requests])
    return sorted({int(match[1]) for match in found if match})


@pytest.mark.soak
def test_no_save_waits_for_the_collection_of_old_ones(tmp_path: Path, s3: FaultyS3) -> None:
    deletion = s3.hold("POST", "delete")
    with cluster(tmp_path, storage=s3.url) as [node]:
        epoch, worker = started(node)
        for step in range(1, 7):
            worker.save(step)
            assert worker.client.flush(PATIENT), step
        assert deletion.there.wait(PATIENT)
        node.agent.hurry(time.time() + 120)
        worker.step(7)
        assert worker.client.flush(PATIENT)
        assert committed(s3.url) == Commit(epoch, 7)
        assert node.agent.status().collecting
        deletion.go_on.set()
        # What fell due meanwhile is collected, up to the last commit before the notice.
        eventually(lambda: not node.agent.status().collecting)
        assert verified(s3.url) == [Commit(epoch, step) for step in (4, 5, 6, 7)]
        worker.client.leave(clean=True)


@pytest.mark.parametrize(
    "fault", [Fault(status=503), *soaked([Fault(deaf=True)])], ids=["503", "reset"]
)
def test_of_many_files_each_is_sent_again_only_as_often_as_it_failed(
    fault: Fault, tmp_path: Path, s3: FaultyS3
) -> None:
    save = sealed(tmp_path / "slot", tensors=20)
    commits = Commits(open_storage(s3.url), "test")
    assert commits.claim().epoch == save.commit.epoch
    s3.strike_again(3, replace(fault, method="PUT", part=".distcp"))
    *complaints, told = run(commits, lambda pipeline: pipeline.want(save), policy=ONE_TENSOR_A_FILE)
    assert isinstance(told, Committed)
    # An attempt whose first file fails before the others are begun sends none, which is told once.
    assert len(complaints) <= 1 and all(isinstance(c, SaveFailed) for c in complaints), complaints
    assert verified(s3.url) == [save.commit]
    sent = Counter(r[4:] for r in s3.requests if r.startswith("PUT ") and ".distcp" in r)
    assert len(sent) == 20 and s3.failed.total() > 5
    assert all(sent[path] == s3.failed[path] + 1 for path in sent), sent


KINDS = {
    "500": Fault(status=500),
    "503": Fault(status=503),
    "409": Fault(status=409),
    "412": Fault(status=412),
    "not carried out": Fault(deaf=True),
    "answer lost": Fault(),
    "answer cut short": Fault(keep=20),
    "late": Fault(late=1.0),
}


def faults_at_each_of(requests: int) -> Iterator[tuple[int, Fault]]:
    """Where and how to fail: one kind for each request, another one in each turn of a soak."""
    kinds, turn = list(KINDS.values()), int(os.environ.get("SOAK_TURN", "0"))
    for number in range(requests):
        yield number, kinds[(number + turn) % len(kinds)]


@pytest.mark.soak
def test_any_request_of_a_save_a_restore_and_a_claim_may_fail_in_any_way(
    tmp_path: Path, s3: FaultyS3
) -> None:
    def requests_of(work: Callable[[], object]) -> int:
        before = len(s3.requests)
        work()
        return len(s3.requests) - before

    with cluster(tmp_path, storage=s3.url) as [node]:
        epoch, worker = started(node)
        step = 0

        def save() -> None:
            """Until the commit that it retires is collected, too."""
            nonlocal step
            step += 1
            worker.save(step)
            assert worker.client.flush(PATIENT), step
            eventually(lambda: not node.agent.status().collecting)
            assert node.agent.status().commit == Commit(epoch, step)

        for _ in range(4):
            save()
        requests = requests_of(save)
        assert requests > 12
        for number, fault in faults_at_each_of(requests):
            s3.strike(number, fault)
            save()
            assert s3.struck
        save()
        assert verified(s3.url) == [Commit(epoch, step - back) for back in (2, 1, 0)]

        def restore() -> None:
            restored = fetched(worker.client, Resume("store", step, epoch=epoch))
            assert is_content_of(restored, step)
            worker.client.restored(restored.id)

        for number, fault in faults_at_each_of(requests_of(restore)):
            s3.strike(number, fault)
            restore()
            assert s3.struck

        def claim() -> int:
            claimed = node.agent.claim("test", timeout=30)
            assert claimed.commit == Commit(epoch, step)
            return claimed.epoch

        last = claim()
        for number, fault in faults_at_each_of(requests_of(claim)):
            s3.strike(number, fault)
            last, before = claim(), last
            assert last > before
            assert s3.struck
        worker.client.leave(clean=True)
        never_went_back(s3.latest)
        nothing_is_half_uploaded(s3.url)


def test_a_shard_that_has_lost_its_end_is_found_and_named(tmp_path: Path) -> None:
    with cluster(tmp_path) as [node]:
        epoch, worker = started(node)
        worker.save(1)
        assert worker.client.flush(PATIENT)
        [shard] = Path(node.storage).rglob("*.distcp")
        os.truncate(shard, 1000)
        with pytest.raises(RestoreFailed, match=r"__0_0\.distcp is damaged: it is shorter"):
            fetched(worker.client, Resume("store", 1, epoch=epoch))
        worker.client.leave(clean=True)


@pytest.mark.soak
def test_an_upload_whose_daemon_is_killed_between_two_parts_is_ended_by_the_next_epoch(
    tmp_path: Path, s3: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"words": bytes(WHOLE + 1)}  # tensors are cut: one value alone is ever as large
    second = s3.hold("PUT", "partNumber=2")
    with cluster(tmp_path, storage=s3.url) as [node]:
        with (
            under_agent(node, "r1", Resume(), monkeypatch, Schedule(1, 1)),
            se.Checkpointer(state) as checkpoint,
        ):
            checkpoint.step(1)
            assert second.there.wait(PATIENT)
            node.kill()
            storage = open_storage(s3.url)
            assert len(storage.unfinished()) == 1
            second.go_on.set()
            node.start()
            node.begin(round_info("r1", 0, ["n0"], 1, 1, schedule=Schedule(1, 1)))
            assert checkpoint.wait()
        node.agent.claim("test", timeout=PATIENT)
        eventually(lambda: storage.unfinished() == [])
        assert verified(s3.url) == [Commit(1, 1)]
