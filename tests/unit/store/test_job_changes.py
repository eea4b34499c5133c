"""The job's description has several writers: none of them undoes what another one has written."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.aws.account import account
from support.aws.cluster_requests import request
from support.aws.fake_services import cloud_over
from support.processes.patience import PATIENT
from support.store.memory_store import MemoryStore

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.aws.security import certificates
from spotelastic.aws.security import secrets as user_secrets
from spotelastic.client import commands
from spotelastic.cloud.bucket import JOB
from spotelastic.controller.effects.executor import ControllerExecutor
from spotelastic.controller.model.observation import Rescale
from spotelastic.errors import EnvironmentFailure
from spotelastic.model.job import JobSpec, Settings
from spotelastic.model.requests.command import Command
from spotelastic.model.validity import Validity
from spotelastic.store.election import campaign
from spotelastic.store.keys import Keys

SPEC = JobSpec("demo", "run", "train.py", (), "c0de", Settings(1, 4), "s3://bucket/demo", ())
TIMES = 15


@pytest.fixture
def objects(tmp_path: Path) -> Iterator[BucketObjects]:
    with account(tmp_path):
        aws = Aws()
        aws.s3.create_bucket(Bucket="bucket")
        objects = BucketObjects(aws, "bucket", "demo")
        write(objects, SPEC)
        yield objects


def write(objects: BucketObjects, spec: JobSpec) -> None:
    objects.put(JOB, msgspec.json.encode(spec))


def read(objects: BucketObjects) -> JobSpec:
    found = objects.job()
    assert found is not None
    return found


def scale(low: int | None, high: int | None) -> Rescale:
    return Rescale(Command("c1", "scale", low, high), cause="c1")


def leader(objects: BucketObjects) -> ControllerExecutor:
    store = MemoryStore(lambda: 0.0).client()
    leadership = campaign(store, Keys("run").leader, b"i-control", store.grant(10.0))
    assert leadership is not None
    cloud = cloud_over(objects.aws)
    return ControllerExecutor(cloud, store, leadership, SPEC.run, lambda: True)


def just_before_the_next_write(objects: BucketObjects, happens: Callable[[], None]) -> None:
    waiting = [happens]

    def strike(**_: Any) -> None:
        if waiting:
            waiting.pop()()

    objects.aws.s3.meta.events.register("before-call.s3.PutObject", strike)


def test_a_scale_keeps_what_up_has_written_since_it_looked(objects: BucketObjects) -> None:
    changed = replace(SPEC, code="new", settings=Settings(2, 4, code="new"))
    just_before_the_next_write(objects, lambda: write(objects, changed))
    acts = leader(objects)
    assert acts.perform([scale(None, 8)]) == (scale(None, 8),)
    assert read(objects) == replace(changed, settings=Settings(2, 8, code="new"))


def test_a_scale_that_what_up_has_written_contradicts_is_not_carried_out(
    objects: BucketObjects,
) -> None:
    changed = replace(SPEC, settings=Settings(6, 9))
    just_before_the_next_write(objects, lambda: write(objects, changed))
    assert leader(objects).perform([scale(None, 3)]) == (), "so that it is decided on once more"
    assert read(objects) == changed


def test_a_job_that_is_gone_is_not_made_again(objects: BucketObjects) -> None:
    just_before_the_next_write(objects, lambda: objects.delete(JOB))
    with pytest.raises(EnvironmentFailure, match=r"job.json is missing: demo has no job"):
        objects.change_job(lambda spec: replace(spec, code="new"))
    assert objects.job() is None


def test_of_two_who_change_it_at_once_none_loses_anything(objects: BucketObjects) -> None:
    """As a leader that scales beside a restart."""
    acts, cluster = leader(objects), ClusterRecord(objects.aws, SPEC, "bucket")

    def scales() -> None:
        for count in range(TIMES):
            while not acts.perform([scale(None, 5 + count)]):
                pass

    def restarts() -> None:
        for _ in range(TIMES):
            cluster.change(lambda spec: replace(spec, created_at=spec.created_at + 1))

    both = [threading.Thread(target=each) for each in (scales, restarts)]
    for each in both:
        each.start()
    for each in both:
        each.join(PATIENT)
    last = read(objects)
    assert (last.settings.max_nodes, last.created_at) == (4 + TIMES, TIMES)


def test_up_again_keeps_when_the_cluster_was_made(
    objects: BucketObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "ensure_token", lambda *_, **__: None)
    monkeypatch.setattr(certificates, "ensure", lambda *_, **__: Validity())
    monkeypatch.setattr(user_secrets, "put", lambda *_, **__: {})
    wanted = request("demo")
    for at, new, born_at in ((100.0, True, 100.0), (200.0, False, 100.0), (300.0, True, 300.0)):
        up = ClusterRecord(objects.aws, replace(SPEC, created_at=at), "bucket")
        clusters.ship(up, wanted, new=new)
        assert (read(objects).created_at, read(objects).born_at) == (at, born_at)


def test_a_restart_finds_the_packages_that_were_lacking(
    objects: BucketObjects, tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").touch()
    (folder / "requirements.txt").write_text("einops\n")
    cluster = ClusterRecord(objects.aws, SPEC, "bucket")
    commands.ship(cluster, lambda spec: spec, folder, None)
    found = read(objects).environment
    assert found is not None and found.file == "requirements.txt"
    commands.ship(cluster, lambda spec: spec, folder, "none")
    assert read(objects).environment is None
