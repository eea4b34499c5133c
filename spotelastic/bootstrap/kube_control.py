"""Runs the control pod of a cluster on Kubernetes: `spotelastic boot kube`.

    boot kube                  holds the Lease, and starts the parts while it does
      ├─ etcd                  the cluster's only member, whose data are the pod's
      └─ boot kube-controller

A pod that takes the place of a lost one begins with the newest snapshot of etcd. Training goes on
meanwhile; nodes that come or go wait.

Must never happen: two control pods of a cluster run an etcd, or a controller that acts
(`kubernetes/provider/lock.py`). So both are killed as soon as the Lease could not be renewed, and
the controller looks at the time until which it is held before each change.
"""

import logging
import os
import signal
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from spotelastic.bootstrap.context import home, log_as, start
from spotelastic.bootstrap.supervisor import Process, SupervisedProcess, supervise
from spotelastic.clock import steady, wall
from spotelastic.cloud.bucket import ClusterBucket
from spotelastic.errors import EnvironmentFailure, SpotelasticError, Unavailable
from spotelastic.kubernetes.provider import api_client as kube_api
from spotelastic.kubernetes.provider.api_client import KubeApi
from spotelastic.kubernetes.provider.config_map_objects import ConfigMapObjects
from spotelastic.kubernetes.provider.kubernetes_cloud import connect
from spotelastic.kubernetes.provider.lock import LeaseLock
from spotelastic.linux import name_process
from spotelastic.model.job import JobSpec

if TYPE_CHECKING:
    from spotelastic.controller.etcd.member_lifecycle import MemberLifecycle


logger = logging.getLogger(__name__)

POD, CLUSTER, ADDRESS = "SPOTELASTIC_POD", "SPOTELASTIC_CLUSTER", "SPOTELASTIC_LOCAL_ADDR"
NAMESPACE = "SPOTELASTIC_NAMESPACE"
MEMBER = "a"
PEER_PORT = 2380
SNAPSHOT_EVERY = 60.0
"""Seconds between two snapshots of etcd: a pod may be lost with its data at any time."""
LOST = 1
GRACE = 15.0
RETRY = 1.0


@dataclass(frozen=True, slots=True)
class HeldUntil:
    """Until when the Lease is held, in a file that both processes of the pod see.

    The steady clock is the machine's, so it is the same for them.
    """

    path: Path

    def write(self, until: float) -> None:
        """Say until when it is held."""
        written = self.path.with_suffix(".new")
        written.write_text(repr(until))
        written.replace(self.path)

    def holds(self) -> bool:
        """Whether the Lease is held now."""
        try:
            return steady() < float(self.path.read_text())
        except (OSError, ValueError):
            return False


@dataclass(slots=True)
class _Children:
    """The processes that end with the Lease."""

    pids: set[int] = field(default_factory=set)
    ended: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def started(self, process: Process) -> Process:
        with self.lock:
            if self.ended:
                os.kill(process.pid, signal.SIGKILL)
            self.pids.add(process.pid)
        return process

    def kill(self) -> None:
        with self.lock:
            self.ended = True
            for pid in self.pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def run() -> int:
    """Run the pod until it is told to end, or loses the Lease. Returns the exit code."""
    name_process("se-boot")
    log_as("boot", os.environ[POD])
    api, over = _api(), threading.Event()
    lock, held = LeaseLock(api, os.environ[CLUSTER], os.environ[POD]), _held()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    if not lock.acquire(over, logger.info):
        return 0
    held.write(lock.held_until)
    logger.info("holds the Lease")
    children = _Children()
    keeper = lock.keeping(over, held.write, partial(_end, children))
    try:
        spec = _spec(ConfigMapObjects(api, os.environ[CLUSTER]), over)
        code = 0 if spec is None else _supervise(api, spec, children)
    finally:
        over.set()
        held.write(0.0)
        keeper.join()
        with suppress(SpotelasticError):
            lock.release()
    return code


def controller() -> int:
    """Run the controller, in a process of its own. At its end it saves etcd."""
    from spotelastic.controller.etcd import snapshots
    from spotelastic.controller.loop.controller_loop import run
    from spotelastic.controller.model.config import ControllerConfig, LoopPace

    name_process("se-controller")
    log_as("controller", os.environ[POD])
    api, cluster = _api(), os.environ[CLUSTER]
    objects = ConfigMapObjects(api, cluster)
    spec = objects.job()
    if spec is None:
        raise EnvironmentFailure(f"{objects.url('job.json')} is missing")
    log_as("controller", os.environ[POD], spec.env)
    pace = LoopPace(snapshots=SNAPSHOT_EVERY)
    config = ControllerConfig(spec, os.environ[POD], os.environ[ADDRESS], pace=pace)
    code = run(config, connect(api, cluster, _held().holds))
    try:
        if _held().holds():
            snapshots.save(objects, spec.etcd, None, wall())
    except SpotelasticError as error:
        logger.warning(f"no last snapshot of etcd: {error}")
    return code


def _end(children: _Children) -> None:
    logger.error("the Lease could not be renewed: etcd and the controller are ended")
    children.kill()
    os._exit(LOST)


def _supervise(api: KubeApi, spec: JobSpec, children: _Children) -> int:
    seat = _seat(spec, ConfigMapObjects(api, spec.cluster))
    parts = (
        SupervisedProcess("etcd", lambda: children.started(seat.start())),
        SupervisedProcess("controller", lambda: children.started(start("kube-controller"))),
    )
    return supervise(parts, GRACE)


def _seat(spec: JobSpec, objects: ClusterBucket) -> "MemberLifecycle":
    from spotelastic.controller.etcd.member_lifecycle import MemberLifecycle, MemberLifecycleConfig
    from spotelastic.store.etcd_server.process import MemberConfig

    address, (endpoint,) = os.environ[ADDRESS], spec.etcd
    folder = home() / "etcd"
    folder.mkdir(exist_ok=True)
    peer = f"{address}:{PEER_PORT}"
    member = MemberConfig(
        name=MEMBER, data_dir=folder, client=endpoint, peer=peer, cluster={MEMBER: peer},
        token=spec.cluster, listen=address,
    )  # fmt: skip
    config = MemberLifecycleConfig(member, folder, {MEMBER: endpoint}, home() / "etcd.log")
    return MemberLifecycle(config, objects)


def _spec(objects: ConfigMapObjects, over: threading.Event) -> JobSpec | None:
    """Return the description of the job; None if the pod is told to end before it can be read."""
    while not over.is_set():
        try:
            if (spec := objects.job()) is not None:
                return spec
            logger.warning(f"{objects.url('job.json')} is missing")
        except Unavailable as error:
            logger.warning(str(error))
        over.wait(RETRY)
    return None


def _api() -> KubeApi:
    return kube_api.connect(namespace=os.environ[NAMESPACE])


def _held() -> HeldUntil:
    return HeldUntil(home() / "held-until")
