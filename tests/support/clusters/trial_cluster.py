"""Brings up a cluster on its own local cloud: real control nodes, and idle workers unless a test
wants more."""

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest
from pyetcd import etcdrpc as rpc
from support.aws import cluster_requests as asked
from support.processes.patience import PATIENT
from support.unkind import UNKIND
from support.unkind.fault_client import FaultClient

from spotelastic.aws.artifacts.code_archive import pack
from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.names import SHARED_NETWORK, Names
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.aws.compute import autoscaling
from spotelastic.aws.network import shared_network
from spotelastic.aws.planning.plan import ClusterSpec
from spotelastic.aws.security import certificates
from spotelastic.cloud.model import WorkerGroup
from spotelastic.errors import Unavailable
from spotelastic.local import cloud
from spotelastic.model.progress import Event, Status
from spotelastic.store.etcd import EtcdStore
from spotelastic.store.members import MemberChannel
from spotelastic.store.tls import TlsFiles

NAME = "trial"
DEADLINE = PATIENT
CONTROL_ONLY = """
import os, signal
from spotelastic.aws.base.identity import ROLE, from_imds
from spotelastic.bootstrap.entrypoint import boot
me = from_imds(os.environ["AWS_EC2_METADATA_SERVICE_ENDPOINT"])
raise SystemExit(boot() if me.tag(ROLE) == "control" else signal.pause())
"""
ONE_LEADS = ["leading", "standing by", "standing by"]
T = TypeVar("T")


@dataclass(frozen=True)
class Trial:
    cluster: ClusterRecord
    faults: FaultClient
    request: ClusterSpec
    tls: TlsFiles
    """What a member shows to etcd, which lets it do everything."""

    @contextmanager
    def store(self) -> Iterator[EtcdStore]:
        store = EtcdStore(self.cluster.spec.etcd, timeout=PATIENT, tls=self.tls)
        with contextlib.closing(store):
            yield store

    def members(self) -> dict[str, int]:
        """By name of the member: etcd's own id for it. Each of them answers."""
        spec, found = self.cluster.spec, dict[str, int]()
        for name, endpoint in zip(spec.etcd_members, spec.etcd, strict=True):
            with contextlib.closing(MemberChannel(endpoint, self.tls)) as member:
                try:
                    status = member.status(rpc.StatusRequest(), timeout=PATIENT)
                except grpc.RpcError as error:
                    raise Unavailable(f"etcd at {endpoint} did not answer") from error
            found[name] = status.header.member_id
        return found

    def status(self, wanted: Callable[[Status], bool], what: str) -> Status:
        """The first published status that is as wanted."""

        def look() -> Status | None:
            found = self.cluster.objects.status()
            return found if found is not None and wanted(found) else None

        return eventually(look, what)

    def event(self, kind: str, wanted: Callable[[Event], bool] = lambda _: True) -> Event:
        def look() -> Event | None:
            found = self.cluster.objects.events()
            return next((e for e in found if e.kind == kind and wanted(e)), None)

        return eventually(look, f"an event {kind}")

    def group(self) -> WorkerGroup:
        found = autoscaling.group(self.cluster.aws, Names(NAME).workers)
        assert found is not None
        return found


def controllers(status: Status) -> list[str]:
    return sorted(node.state for node in status.nodes if node.role == "control")


def eventually(look: Callable[[], T | None], what: str) -> T:
    """Polls what can only be polled: AWS's API, which tells a laptop nothing by itself, and which
    may be busy."""
    deadline = time.monotonic() + DEADLINE
    while (found := _unless_busy(look)) is None:
        assert time.monotonic() < deadline, f"not within {DEADLINE} s: {what}"
        time.sleep(0.1)
    return found


def _unless_busy(look: Callable[[], T | None]) -> T | None:
    try:
        return look()
    except Unavailable:
        return None


def nothing_is_left(aws: Aws) -> None:
    assert clusters.all_names(aws) == ()
    assert all(machine.state == "terminated" for machine in autoscaling.instances(aws, NAME))
    assert aws.autoscaling.describe_auto_scaling_groups()["AutoScalingGroups"] == []
    assert aws.ec2.describe_launch_templates()["LaunchTemplates"] == []
    assert aws.ec2.describe_volumes()["Volumes"] == []
    assert aws.ec2.describe_network_interfaces()["NetworkInterfaces"] == []
    only_the_shared_network_is_left(aws)
    assert aws.sqs.list_queues().get("QueueUrls", []) == []
    groups = {group["logGroupName"] for group in aws.logs.describe_log_groups()["logGroups"]}
    assert groups <= {Names(NAME).log_group}, "what workers have written outlives the cluster"
    parameters = aws.ssm.describe_parameters()["Parameters"]
    assert [p["Name"] for p in parameters if not p["Name"].startswith("/aws/")] == []
    stacks = aws.cloudformation.list_stacks(StackStatusFilter=["CREATE_COMPLETE"])["StackSummaries"]
    assert {stack["StackName"] for stack in stacks} <= {SHARED_NETWORK}


def only_the_shared_network_is_left(aws: Aws) -> None:
    """Besides the default one."""
    shared = shared_network.look(aws)
    vpcs = aws.ec2.describe_vpcs()["Vpcs"]
    others = [vpc["VpcId"] for vpc in vpcs if not vpc["IsDefault"]]
    assert others == ([shared.vpc] if shared else [])


NO_WORKERS = (sys.executable, "-c", CONTROL_ONLY)
NEVER_RUN = "print('never run here')\n"


@contextmanager
def running_trial(
    folder: Path, *, boot: Sequence[str] = NO_WORKERS, script: str = NEVER_RUN, **request: Any
) -> Iterator[Trial]:
    work = folder / "work"
    work.mkdir()
    (work / "train.py").write_text(script)
    archive = pack(work)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPOTELASTIC_HOME", str(folder / "home"))
        patch.setenv(cloud.PROGRAM, UNKIND)
        info = cloud.start(detach=False, boot_command=boot)
        try:
            for name, value in cloud.environment(info).items():
                patch.setenv(name, value)
            own = {"code": archive.sha256, "archive": archive.data, "network": info.net}
            wanted = asked.request(NAME, 2, **(own | request))
            cluster = clusters.create(wanted, lambda _: None, Aws(info.region))
            found = certificates.fetch(cluster.aws, Names(NAME).member_certificate("a"))
            yield Trial(cluster, FaultClient(info), wanted, TlsFiles(*found.write(folder / "tls")))
        finally:
            cloud.stop(info)
            shutil.rmtree(cloud.buckets())
            shutil.rmtree(cloud.logs(), ignore_errors=True)
