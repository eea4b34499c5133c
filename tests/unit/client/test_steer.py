"""`interrupt` and `scale`: what they ask for, and what they refuse in one line."""

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.aws.fake_services import fake_aws

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.clusters import fault_injection
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.aws.compute import autoscaling, instance_types, worker_groups
from spotelastic.aws.compute.instance_types import InstanceType
from spotelastic.aws.compute.quotas import Allowance
from spotelastic.cli.main import main
from spotelastic.client import commands
from spotelastic.client import interrupt as client_interrupt
from spotelastic.client.interrupt import InterruptionRequest, interrupt
from spotelastic.client.targets import account, find, local_target
from spotelastic.client.targets.aws_target import AwsTarget
from spotelastic.client.targets.cloud_target import CloudTarget, ClusterTarget
from spotelastic.client.targets.kube_target import KubePlace, KubeTarget
from spotelastic.client.targets.local_target import LocalTarget
from spotelastic.errors import UsageError
from spotelastic.kubernetes.provider.api_client import KubeApi
from spotelastic.local.cloud import CloudInfo
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import AccountDemands, Capacity, JobSpec, Settings

SPEC = JobSpec("demo", "run", "train.py", (), "", Settings(1, 4), "", ())
CLUSTER = ClusterRecord(fake_aws(), SPEC, "bucket")
INFO = CloudInfo("http://127.0.0.1:1", 1, "/tmp", "127.77.0.0/16", "us-east-1", ("us-east-1a",), 1)
AWS: CloudTarget = AwsTarget(Aws("us-east-1"))
LOCAL: CloudTarget = LocalTarget(INFO)
KUBE: ClusterTarget = KubeTarget(KubePlace(), cast(KubeApi, SimpleNamespace(namespace="ml")))
NODES = {"i-spot": True, "i-bought": False}
"""By id: whether it is spot."""
NO_DEMANDS = AccountDemands()


# -- interrupt -----------------------------------------------------------------------------------


class Faults:
    def __init__(self, asked: list[tuple[object, ...]]) -> None:
        self._asked = asked

    def __getattr__(self, name: str) -> Any:
        return lambda *told: self._asked.append((name, *told))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """Of the local cloud's faults, of Auto Scaling, and of the Fault Injection Service."""
    asked: list[tuple[object, ...]] = []
    machines = [SimpleNamespace(id=name, spot=spot) for name, spot in NODES.items()]
    nodes = [SimpleNamespace(id=name, state="active") for name in NODES]
    nodes.append(SimpleNamespace(id="i-gone", state="gone"))
    monkeypatch.setattr(client_interrupt, "status_of", lambda _: SimpleNamespace(nodes=nodes))
    monkeypatch.setattr(local_target, "FaultClient", lambda _: Faults(asked))
    monkeypatch.setattr(autoscaling, "instances", lambda *_: machines)
    monkeypatch.setattr(autoscaling, "end", lambda _, names: asked.append(("end", *names)))
    monkeypatch.setattr(fault_injection, "interrupt", lambda _, *told: asked.append(("fis", *told)))
    return asked


@pytest.mark.parametrize(
    ("cloud", "what", "done", "told", "seconds"),
    [
        (
            LOCAL,
            InterruptionRequest("i-spot", InterruptionKind.SPOT_INTERRUPTION, 15.0),
            ("interrupt", "i-spot", 15.0),
            "15 s",
            15,
        ),
        (
            LOCAL,
            InterruptionRequest("i-spot", InterruptionKind.SPOT_INTERRUPTION, 0.0),
            ("kill", "i-spot"),
            "without notice",
            0,
        ),
        (
            LOCAL,
            InterruptionRequest("i-spot", InterruptionKind.REBALANCE),
            ("rebalance", "i-spot"),
            "and stays",
            None,
        ),
        (
            LOCAL,
            InterruptionRequest("i-spot", InterruptionKind.LOSS),
            ("kill", "i-spot"),
            "without notice",
            0,
        ),
        (
            LOCAL,
            InterruptionRequest("i-bought", InterruptionKind.LOSS),
            ("kill", "i-bought"),
            "without notice",
            0,
        ),
        (
            AWS,
            InterruptionRequest("i-spot"),
            ("fis", "i-spot", 120.0, NO_DEMANDS),
            "taken away in 120 s",
            120,
        ),
        (
            AWS,
            InterruptionRequest("i-spot", InterruptionKind.SPOT_INTERRUPTION, 0.0),
            ("end", "i-spot"),
            "without notice",
            0,
        ),
        (
            *(
                AWS,
                InterruptionRequest("i-spot", InterruptionKind.REBALANCE),
                ("fis", "i-spot", 900.0, NO_DEMANDS),
            ),
            *("gets a rebalance recommendation, and will be taken away in 900 s", 900),
        ),
        (
            AWS,
            InterruptionRequest("i-spot", InterruptionKind.LOSS),
            ("end", "i-spot"),
            "without notice",
            0,
        ),
        (
            AWS,
            InterruptionRequest("i-bought", InterruptionKind.LOSS),
            ("end", "i-bought"),
            "without notice",
            0,
        ),
        *(
            (
                cloud,
                InterruptionRequest("i-bought", InterruptionKind.BY_HAND),
                ("end", "i-bought"),
                "without notice",
                0,
            )
            for cloud in (AWS, LOCAL)
        ),
    ],
)
def test_each_kind_of_interruption_is_asked_of_whoever_can_do_it(
    asked: list[tuple[object, ...]],
    cloud: CloudTarget,
    what: InterruptionRequest,
    done: tuple[object, ...],
    told: str,
    seconds: float | None,
) -> None:
    caused = interrupt(cloud, CLUSTER, what)
    assert told in str(caused) and asked == [done]
    assert (caused.node, caused.kind, caused.seconds) == (what.node, what.kind, seconds)


@pytest.mark.parametrize(
    ("cloud", "node", "kind", "seconds", "why"),
    [
        (AWS, "i-spot", "notice", 15.0, r"^--in 15: AWS always gives 120 s of notice \(or none:"),
        (AWS, "i-bought", "notice", 120.0, "^i-bought is on-demand: AWS gives such instances"),
        (AWS, "i-bought", "rebalance", 120.0, "^i-bought is on-demand"),
        (LOCAL, "i-bought", "notice", 15.0, "^i-bought is on-demand"),
        (LOCAL, "i-gone", "loss", 120.0, "^demo has no node i-gone; it has i-spot, i-bought$"),
        (LOCAL, "i-spot", "loss", 15.0, "^--kind loss --in 15: a loss comes without notice"),
        (LOCAL, "i-spot", "by-hand", 15.0, "^--kind by-hand --in 15: an end by hand comes without"),
        (AWS, "i-spot", "maintenance", 600.0, "^--kind maintenance: expected notice, rebalance, "),
        (KUBE, "i-spot", "rebalance", 120.0, "^--kind rebalance: pods on Kubernetes get a notice"),
        (LOCAL, "i-spot", "flood", 120.0, "^--kind flood: expected notice, rebalance, loss, "),
    ],
)
def test_what_cannot_befall_a_node_is_refused_and_nothing_is_done(
    asked: list[tuple[object, ...]],
    cloud: ClusterTarget,
    node: str,
    kind: str,
    seconds: float,
    why: str,
) -> None:
    with pytest.raises(UsageError, match=why):
        interrupt(cloud, CLUSTER, InterruptionRequest.asked(node, kind, seconds))
    assert asked == []


@pytest.mark.parametrize(
    ("kind", "asked_for", "grace", "told"),
    [
        ("loss", 120.0, 1, "has one second, the least that Kubernetes gives"),
        ("notice", 0.0, 1, "will be taken away in 1 s"),
        ("notice", 15.0, 15, "will be taken away in 15 s"),
        ("notice", 120.0, 30, "will be taken away in 30 s"),
    ],
)
def test_what_a_pod_is_given_on_kubernetes_is_what_is_told(
    asked: list[tuple[object, ...]], kind: str, asked_for: float, grace: int, told: str
) -> None:
    pods = SimpleNamespace(
        get=lambda *_: {"spec": {"terminationGracePeriodSeconds": 30}},
        delete=lambda *its: asked.append(its),
    )
    target = KubeTarget(KubePlace(), cast(KubeApi, pods))
    caused = interrupt(target, CLUSTER, InterruptionRequest.asked("i-spot", kind, asked_for))
    assert asked == [("Pod", "i-spot", grace)]
    assert (str(caused), caused.seconds) == (f"i-spot {told}", grace)


# -- scale ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [("--min", "0"), ("--max", "0"), ("--min", "-1", "--max", "3")])
def test_a_job_of_no_nodes_is_refused_in_one_line(
    args: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(AwsTarget, "cluster", lambda *_: CLUSTER)
    monkeypatch.setattr(find, "find", lambda *_: AWS)
    monkeypatch.setattr(sys, "argv", ["spotelastic", "scale", "demo", *args])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr()
    assert (ended.value.code, told.out) == (2, "")
    assert told.err == f"spotelastic: {args[0]} {args[1]}: a job needs at least one node\n"


@pytest.mark.parametrize(
    ("high", "base", "refused"), [(8, 0, "3 of 8"), (8, 4, "3 of 4"), (8, 5, ""), (8, 8, "")]
)
def test_nodes_of_a_base_are_no_spot_nodes_that_a_quota_must_allow(
    high: int, base: int, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = InstanceType("g5.xlarge", 4, 1, "A10G", "x86_64")
    left = Allowance("G and VT", "L-1", True, "eu-x", 12, 0)
    known = SimpleNamespace(told=lambda _, spot: left if spot else None, unknown="")
    monkeypatch.setattr(account, "Quotas", lambda *_: known)
    monkeypatch.setattr(instance_types, "describe", lambda *_: (kind,))
    done = SimpleNamespace(state="running")
    monkeypatch.setattr(commands, "status_of", lambda _: done)
    monkeypatch.setattr(commands, "give", lambda *_: "is to have more nodes")
    monkeypatch.setattr(worker_groups, "allow", lambda *_: None)
    spec = replace(SPEC, capacity=Capacity(base=base))
    cluster = ClusterRecord(fake_aws(), spec, "bucket")
    if not refused:
        assert commands.scale(AWS, cluster, None, high, say=print).state == "running"
        return
    with pytest.raises(UsageError, match=f"^--max {high}: quota allows {refused} spot g5.xlarge "):
        commands.scale(AWS, cluster, None, high, say=print)
