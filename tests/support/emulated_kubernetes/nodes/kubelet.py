"""Runs the pods of all nodes: starts their containers in turn, and ends them as Kubernetes does.

A pod that is deleted gets SIGTERM, and SIGKILL after its grace; then its object goes. What must
never happen: an object goes while a process of its pod is left, but for a pod that was deleted with
a grace of 0, whose processes are killed at once.

Only what the product needs is emulated: one container after the init containers, no probes (a
container that runs is ready), no limits of memory and cores.
"""

import asyncio
import json
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from support.emulated_kubernetes.api.kinds import PODS, SERVICES, ObjectKind
from support.emulated_kubernetes.api.objects import Object, ObjectStore, timestamp
from support.emulated_kubernetes.control.control_plane import record_event
from support.emulated_kubernetes.control.jobs import has_ended
from support.emulated_kubernetes.nodes import pod_status
from support.emulated_kubernetes.nodes.pod_names import hostname_of, hosts_file
from support.emulated_kubernetes.nodes.pod_settings import MissingReference, settings
from support.emulated_kubernetes.nodes.pod_status import ContainerCourse
from support.emulated_kubernetes.nodes.runner import PodRunner
from support.emulated_kubernetes.nodes.volumes import PodFolders, write_in_place
from support.emulated_kubernetes.program import command

KILLED = 137
FIRST_BACKOFF, MOST_BACKOFF = 1.0, 60.0
"""Seconds until a container that has failed is started again in its pod."""


@dataclass(slots=True)
class PodRun:
    """A pod that has, or had, processes."""

    uid: str
    namespace: str
    name: str
    number: int = 0
    """Of its containers, which one runs: the init containers come first."""
    restarts: int = 0
    started_at: str = ""
    exit: int | None = None
    """The exit code of the container that ran last."""
    begun: bool = False
    restart_at: float = 0.0
    kill_at: float = 0.0
    """When it is killed; 0: it is not ending."""
    ending: "asyncio.Future[None] | None" = field(default=None, repr=False)
    told: str = ""
    """Why it waits, as it was told."""


class Kubelet:
    """The pods on all nodes.

    `net`: the block of their addresses. `account`: the files of each service account. `variables`:
    of each container. `wake` is called when there is something to do.
    """

    def __init__(
        self,
        store: ObjectStore,
        claims: Path,
        net: str,
        account: Callable[[str], Mapping[str, bytes]],
        variables: Mapping[str, str],
        wake: Callable[[], None],
    ) -> None:
        self._store, self._claims, self._account = store, claims, account
        self._variables, self._wake = variables, wake
        self._addresses = IPv4Network(net)
        self._next_address = 256
        self._runs: dict[str, PodRun] = {}
        self._hosts: dict[str, str] = {}
        self.missing_images: set[str] = set()
        """Images that cannot be pulled."""
        self.runner: PodRunner

    def exited(self, uid: str, code: int) -> None:
        """Take note of the end of a pod's first process."""
        if run := self._runs.get(uid):
            run.exit = pod_status.exit_code(code)
            self._kill(run)

    def sync(self) -> float:
        """Do what is to be done now. Returns when to do it again at the latest; 0: at a change."""
        pods = {pod["metadata"]["uid"]: pod for pod in self._store.items(PODS)}
        for uid in self._runs.keys() - pods.keys():
            self._kill(self._runs[uid])
        for pod in pods.values():
            self._sync_pod(pod)
        self._write_hosts()
        waits = [
            each
            for run in self._runs.values()
            for each in (run.restart_at, run.kill_at)
            if each and run.ending is None
        ]
        return min(waits, default=0.0)

    def vanish(self, pod: Object) -> None:
        """Kill a pod's processes as a machine that is switched off does."""
        if run := self._runs.get(pod["metadata"]["uid"]):
            run.exit = KILLED
            self._kill(run)

    # -- the life of a pod -----------------------------------------------------------------------

    def _sync_pod(self, pod: Object) -> None:
        metadata, now = pod["metadata"], self._store.clock()
        run = self._runs.get(metadata["uid"])
        if has_ended(pod):
            self._forget(pod)
        elif "deletionTimestamp" in metadata:
            if run is None or not run.begun:
                self._conclude(pod, None)
            else:
                self._end(run, float(metadata["deletionGracePeriodSeconds"]), now)
        elif not pod["spec"].get("nodeName"):
            return
        elif run is None or (not run.begun and now >= run.restart_at and run.ending is None):
            self._begin(pod)

    def _begin(self, pod: Object) -> None:
        """Start the pod's next container, if it can be started."""
        metadata = pod["metadata"]
        run = self._runs.get(metadata["uid"])
        if run is None:
            run = PodRun(metadata["uid"], metadata["namespace"], metadata["name"])
            self._runs[run.uid] = run
            pod = self._set(pod, self._addressed)
        container = _containers(pod)[run.number]
        if container["image"] in self.missing_images:
            told = f'Back-off pulling image "{container["image"]}"'
            self._wait(pod, run, "ErrImagePull" if not run.told else "ImagePullBackOff", told)
            return
        folders, find = self._folders(run), partial(self._find, run.namespace)
        try:
            account = pod["spec"].get("serviceAccountName", "default")
            files = {**self._account(f"{run.namespace}:{account}")}
            folders.lay_out(pod, find, files | {"namespace": run.namespace.encode()})
            variables = {**self._variables, "HOME": str(folders.own / "home")}
            variables["TMPDIR"] = variables["HOME"]
            variables["HOSTNAME"] = hostname_of(pod)
            its = settings(container, pod, variables, find)
        except MissingReference as error:
            self._wait(pod, run, "CreateContainerConfigError", str(error))
            return
        self._write_hosts_of(pod, run)
        described = folders.own / "container.json"
        described.write_text(
            json.dumps(
                {
                    "argv": its.argv,
                    "env": {**its.env, **self.runner.marks(run.uid)},
                    "workdir": its.workdir or its.env["HOME"],
                    "mounts": folders.mounts(its, pod),
                    "root": str(folders.own / f"root-{run.number}-{run.restarts}"),
                    "hostname": hostname_of(pod),
                }
            )
        )
        run.begun, run.exit, run.told = True, None, ""
        run.started_at = timestamp(self._store.clock())
        program = "support.emulated_kubernetes.nodes.container"
        self.runner.begin(run.uid, command(program, str(described)), {**its.env})
        if run.number == len(_containers(pod)) - 1:
            self._set(pod, lambda status, now: pod_status.running(status, self._course(pod), now))
            record_event(
                self._store, PODS, pod, "Started", f"Started container {container['name']}"
            )

    def _end(self, run: PodRun, grace: float, now: float) -> None:
        """Let a pod end within its grace, and kill it after that."""
        if not run.kill_at:
            self.runner.signal(run.uid, signal.SIGTERM)
        run.kill_at = min(run.kill_at or now + grace, now + grace)
        if now >= run.kill_at:
            self._kill(run)

    def _kill(self, run: PodRun) -> None:
        """Kill what is left of a container, and go on when nothing is."""
        if run.ending is None:
            run.ending = self.runner.end(run.uid, keep_memory=True)
            run.ending.add_done_callback(lambda _: self._killed(run))

    def _killed(self, run: PodRun) -> None:
        """Go on after a container: with the next one, with itself again, or with the pod's end."""
        run.ending, run.begun = None, False
        pod = self._store.find(PODS, run.namespace, run.name)
        self._wake()
        if pod is None or pod["metadata"]["uid"] != run.uid:
            self._drop(run)
            return
        code = KILLED if run.exit is None else run.exit
        if "deletionTimestamp" in pod["metadata"] or has_ended(pod):
            self._conclude(pod, code)
            return
        last, policy = len(_containers(pod)) - 1, pod["spec"].get("restartPolicy", "Always")
        if run.number < last and code == 0:
            run.number += 1
        elif policy == "Never" or (policy == "OnFailure" and code == 0):
            self._conclude(pod, code)
        else:
            delay = min(MOST_BACKOFF, FIRST_BACKOFF * 2 ** min(run.restarts, 10))
            run.restarts += 1
            run.restart_at = self._store.clock() + delay
            self._wait(pod, run, "CrashLoopBackOff", f"back-off {delay:.0f}s restarting")

    def _conclude(self, pod: Object, code: int | None) -> None:
        """Show the end of a pod, and let its object go if it was deleted."""
        if not has_ended(pod):
            course = self._course(pod)
            pod = self._set(pod, lambda status, now: pod_status.ended(status, course, code, now))
        self._forget(pod)

    def _forget(self, pod: Object) -> None:
        """Remove what a pod that has ended has on this machine, and its object if that is due."""
        metadata = pod["metadata"]
        run = self._runs.get(metadata["uid"])
        if run is not None and run.begun:
            self._kill(run)  # it was declared as ended while it ran
            return
        if run is not None:
            self._drop(run)
        if metadata.get("deletionGracePeriodSeconds"):
            self._store.delete(PODS, metadata["namespace"], metadata["name"], grace=0)

    def _drop(self, run: PodRun) -> None:
        self._runs.pop(run.uid, None)
        self._hosts.pop(run.uid, None)
        self.runner.end(run.uid)  # its volumes in memory
        self._folders(run).remove()

    # -- within ----------------------------------------------------------------------------------

    def _wait(self, pod: Object, run: PodRun, reason: str, message: str) -> None:
        course = self._course(pod)
        self._set(pod, lambda status, now: pod_status.waiting(status, course, reason, message, now))
        if run.told != message:
            record_event(self._store, PODS, pod, "Failed", message)
        run.told = message

    def _set(self, pod: Object, change: Callable[[Object, str], Object]) -> Object:
        """Change a pod's status, and return the pod."""
        metadata, now = pod["metadata"], timestamp(self._store.clock())

        def mutate(it: Object) -> None:
            it["status"] = change(it["status"], now)

        made = self._store.update(
            PODS, metadata["namespace"], metadata["name"], mutate, uid=metadata["uid"]
        )
        return made or pod

    def _addressed(self, status: Object, now: str) -> Object:
        size = self._addresses.num_addresses - 512
        address = self._addresses[256 + self._next_address % size]
        self._next_address += 1
        return pod_status.addressed(status, str(address), str(self._addresses[1]), now)

    def _course(self, pod: Object) -> ContainerCourse:
        container = _containers(pod)[-1]
        run = self._runs.get(pod["metadata"]["uid"])
        if run is None:
            return ContainerCourse(container["name"], container["image"])
        return ContainerCourse(container["name"], container["image"], run.restarts, run.started_at)

    def _folders(self, run: PodRun) -> PodFolders:
        return PodFolders(self.runner.folder(run.uid), self.runner.memory(run.uid), self._claims)

    def _find(self, namespace: str, kind: ObjectKind, name: str) -> Object | None:
        return self._store.find(kind, namespace, name)

    def _write_hosts(self) -> None:
        for run in self._runs.values():
            pod = self._store.find(PODS, run.namespace, run.name)
            if pod is not None and run.begun:
                self._write_hosts_of(pod, run)

    def _write_hosts_of(self, pod: Object, run: PodRun) -> None:
        services, pods = self._store.items(SERVICES), self._store.items(PODS)
        text = hosts_file(pod, hostname_of(pod), services, pods)
        if self._hosts.get(run.uid) != text:
            write_in_place(self._folders(run).hosts, text)
            self._hosts[run.uid] = text


def _containers(pod: Object) -> list[Object]:
    spec: dict[str, Any] = pod["spec"]
    return [*spec.get("initContainers", ()), *spec["containers"]]
