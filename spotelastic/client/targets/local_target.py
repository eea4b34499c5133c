"""Runs clusters in the cloud that is emulated on this machine.

The local cloud lives as long as a process uses it or a cluster is in it, which
spotelastic/local/users.py counts. A cluster ends with the last process that works on it, unless one
has asked to keep it.
"""

import atexit
import logging
import os
import socket
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from spotelastic_checkpoints.storage.object_store import Storage

from spotelastic import validation
from spotelastic.aws.base.clients import Aws
from spotelastic.aws.clusters import lifecycle
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.aws.compute import autoscaling
from spotelastic.aws.planning.plan import ClusterSpec
from spotelastic.client.interruptions.interrupt import InterruptionRequest
from spotelastic.client.progress import Say
from spotelastic.client.targets import everywhere, local_data
from spotelastic.client.targets.account import AccountClusters
from spotelastic.client.targets.aws_target import READ_TIMEOUT
from spotelastic.client.targets.cloud_target import CloudEnded
from spotelastic.errors import SpotelasticError, UsageError
from spotelastic.local import cloud, joining
from spotelastic.local.cloud import CloudInfo
from spotelastic.local.fault_client import FaultClient
from spotelastic.local.joining import CloudUse
from spotelastic.local.local_session import LocalSession
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import AccountDemands
from spotelastic.model.progress import NodeStatus

FEW_ATTEMPTS = 4
GONE = "the local cloud has ended, and its clusters with it"
EMULATED = (
    "The local cloud's prices are invented, to show what a plan looks like. Nothing here costs "
    "money: it all runs on this machine."
)

_log = logging.getLogger(__name__)
_used: CloudInfo | None = None
"""The local cloud that this process has used last."""


class LocalTarget(AccountClusters):
    """The local cloud. `use`: this process's use of it, which keeps it alive."""

    costs_money = False
    price_label = " (invented prices of the local cloud)"

    def __init__(self, info: CloudInfo, use: CloudUse | None = None, region: str = "") -> None:
        """`region`: another one than the cloud was started with."""
        global _used
        _used = info
        session = LocalSession(info, region)
        # A cloud on this machine is not busy, and may have ended.
        attempts = int(os.environ.get("AWS_MAX_ATTEMPTS") or FEW_ATTEMPTS)
        where = region or info.region
        super().__init__(Aws(where, read_timeout=READ_TIMEOUT, attempts=attempts, session=session))
        self._info = info
        self._use = use
        self._owned = ""
        """The cluster that this process has created and that ends with its users."""

    @classmethod
    def join(cls, say: Say) -> "LocalTarget":
        """Use the running local cloud, or start one."""
        use, new = joining.join(lambda: say("starting the local cloud"))
        if new:
            say(f"local cloud at {use.info.endpoint}: {', '.join(use.info.zones)}")
        else:
            say(f"using the running local cloud at {use.info.endpoint}")
        return cls(use.info, use)

    def in_region(self, region: str) -> "LocalTarget":
        if region not in (known := cloud.regions(self._info.region)):
            raise UsageError(f"--region {region}: the local cloud has {', '.join(known)}")
        return LocalTarget(self._info, self._use, region)

    @property
    def where_to_look(self) -> str:
        return f"see {self._info.folder}/instances/*/console.log"

    def about_prices(self, date: str) -> str:
        return EMULATED

    def arguments_of(self, name: str) -> str:
        return name

    def storage(self, url: str) -> Storage:
        from spotelastic_checkpoints.storage.s3.access import S3Access
        from spotelastic_checkpoints.storage.s3.s3_storage import S3Storage

        given = cloud.environment(self._info)
        config = {
            "endpoint": self._info.endpoint,
            "region": self.aws.region,
            "access_key_id": given["AWS_ACCESS_KEY_ID"],
            "secret_access_key": given["AWS_SECRET_ACCESS_KEY"],
        }
        return S3Storage(url, access=S3Access(config))

    def account(self, what: str) -> "LocalTarget":
        return self

    def check(self) -> None:
        if cloud.find() != self._info:
            raise CloudEnded(GONE)

    def check_room(self, nodes: int, workers: int) -> None:
        validation.room(nodes, workers, folder=Path(tempfile.gettempdir()))

    def check_kind(self, what: InterruptionRequest) -> None: ...

    def check_sessions(self, node: NodeStatus) -> None:
        raise UsageError(
            f"nodes of the local cloud are processes on this machine: {node.id} has the address "
            f"{node.address}, and its files are in {self._info.folder}/instances/{node.id}"
        )

    def fitted(self, spec: ClusterSpec) -> ClusterSpec:
        # Its instances run on this machine, which has an etcd.
        return replace(spec, network=self._info.net_of(self.aws.region), etcd=None)

    def create(self, spec: ClusterSpec, say: Say, *, new: bool) -> ClusterRecord:
        use = self._joined()
        with cloud.making(lambda: say("waiting for another `up` to create its cluster")):
            new = new and self.known(spec.name) is None  # another `up` may have been faster
            # From here on the cloud takes it down, however this process ends.
            use.works_on(spec.name, stays=False if new else None)
            self._owned = spec.name if new else ""
            return lifecycle.create(spec, say, self.aws)

    def owns(self, name: str) -> bool:
        return name == self._owned

    def keep(self, name: str) -> None:
        self._joined().works_on(name, stays=True)
        self._owned = ""

    def leave(self, say: Say) -> bool:
        use, self._use = self._use, None
        if use is None or use.leave(say) == "nothing":
            return False
        if use.cluster:
            local_data.tell(use.cluster, say)
        return True

    def hold(self) -> None:
        _held.append((os.getpid(), self))

    def finish(self, name: str, say: Say) -> None:
        self._joined().works_on(name, stays=False)
        self.leave(say)

    def down(
        self, name: str | None, say: Say, *, keep_data: bool = True, bucket: str | None = None
    ) -> None:
        """Take a cluster down; the local cloud ends with its last one."""
        with closing(self._joined()) as use:
            self._use = None
            if keep_data:
                self._down(name, use, say)
            else:
                everywhere.delete(self, name, say, keep_data=False, bucket=bucket)
                use.leave(say, down=True)

    def _down(self, name: str | None, use: CloudUse, say: Say) -> None:
        if name is None and not self.names():
            if not use.leave(say, down=True):
                say("there is no cluster, but another command uses the local cloud, so it stays")
            return
        name = self.known_name(name)
        use.works_on(name)
        use.leave(say, down=True)
        say(f"{name} is gone")
        local_data.tell(name, say)

    def interrupt(self, what: InterruptionRequest, demands: AccountDemands) -> float | None:
        faults = FaultClient(self._info)
        match what.kind:
            case InterruptionKind.BY_HAND:
                autoscaling.end(self.aws, (what.node,))
                return 0.0
            case _ if not what.warns:
                faults.kill(what.node)
                return 0.0
            case InterruptionKind.REBALANCE:
                faults.rebalance(what.node)
                return None
        faults.interrupt(what.node, what.seconds)
        return what.seconds

    def faults(self) -> FaultClient:
        return FaultClient(self._info)

    def _joined(self) -> CloudUse:
        """Return this process's use of the cloud; begins one if there is none."""
        if self._use is None:
            self._use = joining.enter()
        if self._use is None:
            raise CloudEnded(GONE)
        return self._use


_held: list[tuple[int, LocalTarget]] = []
"""Uses that last until the process of that id ends."""


@atexit.register
def _leave_all() -> None:
    """Leave before this process ends, and wait for what ends with it."""
    for pid, target in _held:
        if pid == os.getpid():  # not in a fork of it
            try:
                target.leave(_log.info)
            except SpotelasticError as error:
                _log.warning("%s", error)


def forget_used() -> None:
    """Begin a command for which `has_gone` counts only the cloud that it uses itself."""
    global _used
    _used = None


def has_gone() -> bool:
    """Whether this process used a local cloud that no longer answers.

    A local cloud that is just ending still has its process, but accepts no connections.
    """
    if _used is None:
        return False
    if cloud.find() != _used:
        return True
    address = urlsplit(_used.endpoint)
    try:
        socket.create_connection((address.hostname or "", address.port or 80), 5.0).close()
    except OSError:
        return True
    return False
