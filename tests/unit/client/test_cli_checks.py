"""What `up` refuses before anything starts, and that each refusal says what to do."""

import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from support.aws.fake_services import fake_aws

from spotelastic import validation
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.aws.compute.instance_types import InstanceType, shipped
from spotelastic.client import commands
from spotelastic.client.config.capacity_policy import keep_deadline, with_deadline
from spotelastic.client.config.differences import differences
from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.validated_job import check
from spotelastic.client.targets.choice import (
    AWS_LEASE,
    AWS_SEEN_WITHIN,
    SHARED_LEASE,
    SHARED_SEEN_WITHIN,
)
from spotelastic.errors import EnvironmentFailure, SpotelasticError, UsageError
from spotelastic.model.interval import Interval
from spotelastic.model.job import AccountDemands, Capacity, JobSpec, Settings
from spotelastic.model.progress import Cost
from spotelastic.model.replication import Replication


def request(**changes: Any) -> JobConfig:
    usual: dict[str, Any] = {
        "script": "train.py",
        "args": ("--steps", "3"),
        "local": True,
        "min": 2,
        "max": 4,
        "instance_types": ("g5.xlarge",),
    }
    return JobConfig(**(usual | changes))


GPUS: dict[str, Any] = {"instance_types": ()}
"""For what chooses types in place of named ones."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "notes.txt").write_text("not a script\n")
    (tmp_path / "broken.py").write_text("def f(:\n")
    return tmp_path


def test_a_sound_request_becomes_a_plan(folder: Path) -> None:
    plan = check(request(), folder)
    assert (plan.name, plan.spec.script) == ("train", "train.py")
    settings = plan.spec.settings
    assert (settings.min_nodes, settings.max_nodes, settings.workers) == (2, 4, 1)
    assert plan.archive.files == 3


def test_what_a_job_is_told_becomes_the_settings_of_its_nodes(folder: Path) -> None:
    told = {
        "snapshot_every": "20",
        "checkpoint_every": "10m",
        "keep_last": 5,
        "keep_every": 1000,
        "output": ["out", "./logs/"],
        "replicate": "auto",
        "rehearse": "strict",
        "exact": True,
        "gang": True,
        "stall_timeout": 90.0,
        "exit_barrier_timeout": 60.0,
    }
    assert check(request(**told), folder).spec.settings == replace(
        check(request(), folder).spec.settings,
        snapshot_every=Interval(steps=20),
        checkpoint_every=Interval(seconds=600.0),
        keep_last=5,
        keep_every=1000,
        outputs=("out", "logs"),
        replicate=Replication(None),
        rehearse="strict",
        exact=True,
        gang=True,
        stall_timeout=90.0,
        exit_barrier=60.0,
    )


def test_a_cluster_lingers_for_a_time_not_at_all_or_forever(folder: Path) -> None:
    def linger(text: str) -> float | None:
        return check(request(linger=text), folder).spec.linger

    assert check(request(), folder).spec.linger == 600.0
    assert [linger(text) for text in ("90s", "2h", "0", "forever")] == [90.0, 7200.0, 0.0, None]


@pytest.mark.parametrize(
    ("given", "types", "workers"),
    [
        ({}, ("g6.xlarge", "g6.12xlarge"), [1, 4]),
        ({}, ("g6.12xlarge", "g5.12xlarge"), [4, 4]),
        ({"nproc_per_node": 2}, ("g6.xlarge", "g6.12xlarge"), [2, 2]),
    ],
)
def test_a_node_of_unlike_ones_has_a_worker_for_each_of_its_gpus(
    folder: Path, given: dict[str, Any], types: tuple[str, ...], workers: list[int]
) -> None:
    kinds = {kind.name: kind for kind in shipped()}
    found: Any = SimpleNamespace(types=[kinds[name] for name in types], ranking=(), reservations=())
    its = check(request(local=False, **given), folder).cluster(found).job
    assert [its.workers_on(name) for name in types] == workers
    known = replace(its, gpus=min(kinds[name].gpus for name in types))
    assert all(known.gpus_on(name) <= kinds[name].gpus for name in types)
    assert its.gpus_on(types[0]) == 0, "it is not known"


def test_on_aws_the_instance_type_decides_how_many_workers_a_node_runs(folder: Path) -> None:
    assert check(request(local=False), folder).spec.settings.workers == 0
    assert check(request(local=False, nproc_per_node=8), folder).spec.settings.workers == 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"script": Path("absent.py")}, "there is no script absent.py"),
        ({"script": Path("notes.txt")}, "notes.txt is not a Python file"),
        ({"script": Path("broken.py")}, "broken.py is not a Python file: line 1"),
        ({"script": Path()}, "is not a Python file"),
        ({"min": 5}, "--min 5 is above --max 4"),
        ({"min": 0}, "--min 0: a job needs at least one node"),
        ({"max": 0}, "--max 0: a job needs at least one node"),
        ({"max": 5000}, "--max 5000: at most 1000 nodes"),
        ({"nproc_per_node": 0}, "--nproc-per-node 0"),
        ({"snapshot_every": "-1"}, "--snapshot-every -1: give steps (500), a time (10m), or auto"),
        ({"checkpoint_every": "10 m"}, "--checkpoint-every 10 m: give steps"),
        ({"checkpoint_every": "0s"}, "--checkpoint-every 0s: a time is more than nothing"),
        ({"replicate": "100"}, "--replicate 100: give auto, off, or bytes per second (100MB)"),
        ({"placement": "near"}, "--placement near: expected cluster"),
        (
            {"placement": "cluster", "zones": "spread"},
            "--placement cluster puts all nodes into one zone, --zones spread into all",
        ),
        ({"vpc": "vpc-1"}, "needs both flags: --vpc vpc-... --subnets subnet-...,subnet-..."),
        ({"subnets": ("subnet-1",)}, "needs both flags"),
        ({"control": 2}, "--control 2: expected 3 or 1"),
        ({"mount": ("fs-0123abcd:/data",)}, "--mount fs-0123abcd:/data: nodes of the local cloud"),
        ({"mount": ("here",), "local": False}, "--mount here: expected fs-ID:/FOLDER of EFS"),
        ({"security_group": "sg-1", "local": False}, "--security-group sg-1: it is of one network"),
        ({"proxy": "http://p:1", "local": False}, "--proxy http://p:1: it is of one network"),
        ({"data_key": "alias/a", "local": False}, "--data-key alias/a: expected the ARN of a key"),
        ({"linger": "10"}, "--linger 10: expected a time, such as 90s or 10m, 0, or forever"),
        ({"linger": "auto"}, "--linger auto: expected a time"),
        (
            {"replace_slow": True, "min": 4},
            "--replace-slow: the job never has a node to spare with --min 4",
        ),
        ({"notify": ("json://h", "sns:arn:aws:sns:eu-west-1:123456789012:a")}, "has no topics"),
        ({"notify": ("nothing://s3cret",)}, "the first --notify, a nothing:// URL, is none that"),
        ({"notify": ("HOOK_THAT_IS_NOT",)}, "--notify HOOK_THAT_IS_NOT: there is no such variable"),
        ({"metrics_port": 65536}, "--metrics-port 65536: the last port is 65535"),
        ({"notify_digest": "24:00"}, "--notify-digest 24:00: expected a time of day (UTC)"),
        ({"notify_digest": "06:30"}, "--notify-digest: there is no receiver to send it to"),
        ({"metrics_port": 2380}, "--metrics-port 2380: etcd of the control nodes has that port"),
        ({"keep_last": 0}, "--keep-last 0: must be at least 1"),
        ({"output": ["../out"]}, "--output ../out: name a folder within the working folder"),
        ({"keep_every": -1}, "--keep-every -1: must not be negative"),
        ({"stall_timeout": -0.5}, "--stall-timeout -0.5: must not be negative"),
        ({"exit_barrier_timeout": -1.0}, "--exit-barrier-timeout -1"),
        ({"max_restarts": -1}, "--max-restarts -1"),
        ({"instance_types": ("g5.xlage",)}, "g5.xlage: there is no such instance type"),
        (
            {"gpu_memory": "40", "instance_types": ()},
            "--gpu-memory 40: expected a size of at least 1GB",
        ),
        (
            {"gpu_memory": "big", "instance_types": ()},
            "--gpu-memory big: expected a size, such as 20GB",
        ),
        ({"name": "Not A Name"}, "--name 'Not A Name'"),
        ({"drill": True, "local": False}, "add --local"),
        (
            {"image": "team/torch:2.9"},
            "nodes of the local cloud are processes",
        ),
        ({"drill": True, "detach": True}, "--drill needs a command that stays"),
        ({"drill": True, "min": 1, "max": 1}, "give at least --max 2"),
        ({"report": Path("r.json"), "detach": True}, "--report needs a command that stays"),
        ({"report": Path("/dev/null/r.json")}, "/dev/null/r.json cannot be written"),
        ({"report": Path("a/r.html")}, "give --report a/r.json"),
        ({"curve": Path("/")}, "--curve / is a folder"),
        ({"curve": Path("loss.png")}, "--curve draws an SVG: name it loss.svg"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    folder: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpotelasticError) as caught:
        check(request(**changes), folder)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_cluster_keeps_its_control_nodes(folder: Path) -> None:
    known = check(request(control=1, control_type="t3.medium"), folder).spec
    assert known.etcd_members == ("a",)
    again = check(request(), folder).beside(known).spec
    assert (again.etcd_members, again.control_type) == (("a",), "t3.medium")
    for changes, message in (
        ({"control": 3}, "--control 3: .* was made with 1: take it down"),
        ({"control_type": "t3.large"}, r"--control-type t3\.large: .* was made with t3\.medium"),
    ):
        with pytest.raises(UsageError, match=message):
            check(request(**changes), folder).beside(known)


def test_what_an_account_gives_has_no_effect_with_the_local_cloud(folder: Path) -> None:
    given: dict[str, Any] = {
        "worker_profile": "w",
        "control_image": "ami-1",
        "index_url": "https://p",
    }
    assert check(request(**given), folder).spec.demands == AccountDemands()
    there = check(request(local=False, **given), folder).spec.demands
    assert {name: getattr(there, name) for name in given} == given


def test_a_script_elsewhere_would_not_be_shipped(folder: Path) -> None:
    (folder / "sub").mkdir()
    with pytest.raises(UsageError, match="outside of the working folder"):
        check(request(script=folder / "train.py"), folder / "sub")


def test_an_absolute_path_within_the_folder_is_fine(folder: Path) -> None:
    assert check(request(script=folder / "train.py"), folder).spec.script == "train.py"


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("train_gpt.py", "train-gpt"),
        ("Train.py", "train"),
        ("1st.py", "job-1st"),
        ("_.py", "job"),
        ("a" * 38 + "_very_long.py", "a" * 38),
    ],
)
def test_the_cluster_is_named_after_the_script(script: str, name: str) -> None:
    assert validation.default_name(Path(script)) == name


def test_too_little_room_is_told_with_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = {tmp_path: 10 * 2**30, Path("/dev/shm"): 64 * 2**20}
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free[path]))
    meminfo = tmp_path / "meminfo"  # in place of what this machine has left just now
    meminfo.write_text("MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\n")
    validation.room(1, 1, folder=tmp_path, meminfo=meminfo)
    with pytest.raises(EnvironmentFailure, match=r"/dev/shm has 64 MiB free, 4 workers need 256"):
        validation.room(4, 1, folder=tmp_path, meminfo=meminfo)
    free[tmp_path] = 100 * 2**20
    with pytest.raises(EnvironmentFailure, match=r"100 MiB free, 4 local nodes need 700 MiB"):
        validation.room(4, 1, folder=tmp_path)
    free.update({tmp_path: 2**50, Path("/dev/shm"): 2**50})
    with pytest.raises(EnvironmentFailure, match=r"memory has \d+ MiB free, 900,000 local nodes"):
        validation.room(900_000, 1, folder=tmp_path)


@pytest.mark.parametrize("absent", ["moto", "torch"])
def test_a_missing_part_of_the_local_cloud_is_named(
    absent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == absent else find(name)
    )
    with pytest.raises(EnvironmentFailure, match=rf"needs {absent}: pip install"):
        validation.local_parts()


def test_a_port_that_somebody_has_on_all_addresses_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EnvironmentFailure, match=f"port {port}, .*in use"):
            validation.ports(port)
    validation.ports(port)


def test_files_are_tried_and_left_as_they_were(tmp_path: Path) -> None:
    kept = tmp_path / "report.json"
    kept.write_text("old")
    validation.writable(report=kept, curve=tmp_path / "new" / "curve.png")
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    assert kept.read_text() == "old"
    for bad in (Path("/proc/report.json"), kept / "below", tmp_path):
        with pytest.raises(UsageError, match="--report"):
            validation.writable(report=bad)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"on_demand": "always"}, "--on-demand always: expected never, fallback or base=N"),
        ({"on_demand": "base=5"}, "--on-demand base=5 is more than --max 2"),
        ({"max_price": 0.0}, "--max-price 0: expected more than 0 US dollars"),
        ({"deadline": "100"}, "--deadline 100: expected a time, such as 90m or 8h"),
        ({"spot_patience": float("inf")}, "--spot-patience inf: expected 0 seconds or more"),
    ],
)
def test_what_may_be_bought_is_checked_before_anything_starts(
    folder: Path, change: dict[str, Any], told: str
) -> None:
    with pytest.raises(UsageError) as refused:
        check(request(min=1, max=2, **change), folder)
    assert told in str(refused.value)


def test_what_may_be_bought_is_what_the_flags_say(folder: Path) -> None:
    asked = request(on_demand="base=2", max_cost=50.0, deadline="8h")
    bought = check(asked, folder).spec.capacity
    assert (bought.on_demand, bought.base, bought.max_cost) == ("never", 2, 50.0)
    assert bought.deadline is not None
    assert check(request(on_demand="fallback"), folder).spec.capacity.on_demand == "fallback"


def test_the_same_deadline_said_again_is_the_same_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at(now: float, deadline: str | None) -> Capacity:
        monkeypatch.setattr("spotelastic.client.config.validated_job.wall", lambda: now)
        return check(request(deadline=deadline), folder).spec.capacity

    first, hour = at(1000.0, "8h"), 3600.0
    seven = 1000.0 + 7 * hour
    assert keep_deadline(at(seven, "480m"), first).deadline == first.deadline == 1000.0 + 8 * hour
    assert keep_deadline(at(seven, "9h"), first).deadline == seven + 9 * hour
    assert keep_deadline(at(seven, None), first).deadline is None
    assert keep_deadline(at(seven, "8h"), at(1000.0, None)).deadline == seven + 8 * hour
    again = keep_deadline(at(seven, "8h"), first)
    assert keep_deadline(at(seven + hour, "8h"), again).deadline == first.deadline


def test_a_restart_gives_a_time_that_begins_anew_or_leaves_the_end_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commands, "wall", lambda: 1000.0)
    monkeypatch.setattr(commands, "cost_of", lambda _: Cost("demo", 0.0, 0.0, 0.0, 0.0, 0.0, 0.0))
    before = with_deadline(Capacity(), 60.0, 990.0)
    spec = JobSpec("demo", "run", "train.py", (), "", Settings(1, 2), "", (), capacity=before)
    cluster = ClusterRecord(fake_aws(), spec, "bucket")
    anew = commands.changed_limits(cluster, "8h", None)(spec).capacity
    assert (anew.deadline, keep_deadline(with_deadline(before, 8 * 3600.0, 5000.0), anew)) == (
        29_800.0,
        anew,
    )
    assert commands.changed_limits(cluster, None, 5.0)(spec).capacity == replace(
        before, max_cost=5.0
    )


@pytest.mark.parametrize(
    ("named", "told"),
    [(4, ""), (2, "nproc-per-node 4 -> 2"), (None, "nproc-per-node 4 -> 8")],
)
def test_workers_per_node_are_told_as_they_will_be(
    folder: Path, named: int | None, told: str
) -> None:
    """Where they are not named there is one per GPU, whatever the cluster has had."""
    job = check(request(local=False, nproc_per_node=named), folder)
    its = replace(
        job.spec,
        settings=replace(job.spec.settings, workers=4),
        instance_types=("g5.48xlarge",),
    )
    kind = InstanceType("g5.48xlarge", 192, 8, "A10G", "x86_64")
    found: Any = SimpleNamespace(types=(kind,), ranking=(), reservations=())
    wanted = job.beside(its).cluster(found).job
    assert "; ".join(differences(its, wanted)) == told
    with_secrets = list(differences(its, wanted, ["KEY"]))
    assert with_secrets[-1] == "secret", "whose values are not in the job"


def test_the_lease_is_that_of_the_place_unless_another_is_given(folder: Path) -> None:
    def settings(**changes: Any) -> Settings:
        return check(request(**changes), folder).spec.settings

    shared, alone = settings(), settings(local=False)
    assert (shared.lease, shared.seen_within) == (SHARED_LEASE, SHARED_SEEN_WITHIN)
    assert (alone.lease, alone.seen_within) == (AWS_LEASE, AWS_SEEN_WITHIN)
    assert 6.0 <= AWS_LEASE <= 10.0
    assert settings(local=False, lease=12).lease == settings(lease=12).lease == 12.0
    for wrong in (1, 61):
        with pytest.raises(UsageError, match=r"^--?lease"):
            settings(lease=wrong)


def test_a_cluster_keeps_the_lease_that_its_nodes_hold(folder: Path) -> None:
    its = check(request(local=False), folder).spec
    its = replace(its, settings=replace(its.settings, lease=2.0, seen_within=0.3))
    for given in (None, 2.0):
        again = check(request(local=False, lease=given), folder).beside(its).spec.settings
        assert (again.lease, again.seen_within) == (2.0, 0.3)
    with pytest.raises(UsageError, match=r"^--lease 8: train was made with a lease of 2 s: take"):
        check(request(local=False, lease=8), folder).beside(its)


def test_urls_of_receivers_stand_nowhere_in_the_job(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a variable of the script that holds one."""
    (folder / "vars").write_text("HOOK=json://127.0.0.1/t0ken\nEPOCHS=3\n")
    job = check(request(notify=("HOOK", "ntfy://t0pic-of-mine"), env_file=folder / "vars"), folder)
    assert job.notify == {"1-json": "json://127.0.0.1/t0ken", "2-ntfy": "ntfy://t0pic-of-mine"}
    assert job.spec.notify == {"1-json": 0, "2-ntfy": 0}
    assert job.spec.env == {"EPOCHS": "3"}
    stored = repr(job.spec) + msgspec.json.encode(job.spec).decode()
    assert "t0ken" not in stored and "t0pic" not in stored


def test_a_url_that_has_changed_is_named_without_its_value(folder: Path) -> None:
    known = check(request(notify=("json://127.0.0.1",)), folder).spec
    assert list(differences(known, known, ("1-json",))) == ["notify"]
    assert list(differences(known, known)) == []
    assert list(differences(replace(known, notify={}), known)) == ["notify"]
