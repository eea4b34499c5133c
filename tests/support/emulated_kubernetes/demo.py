"""Trains a job on an emulated cluster through four interruptions: what `make demo-kube` runs.

The job is applied as its manifests say, and nothing helps it but the cluster: the Job's controller
replaces pods, and the nodes go on by themselves.
"""

import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from lightkube import Client, KubeConfig
from lightkube.codecs import from_dict
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod
from support.emulated_kubernetes import cluster
from support.emulated_kubernetes.cluster import RunningCluster
from support.emulated_kubernetes.pod_run import PodFaults, PodRunView, RoundStory
from support.kubernetes.pod_jobs import PORT, indexed_job

from spotelastic.clock import steady
from spotelastic.errors import EnvironmentFailure, SpotelasticError
from spotelastic.local.drill import Drill, DrillPlan
from spotelastic.signals import Signals
from spotelastic.store.etcd import EtcdStore
from spotelastic.store.keys import Keys

NAME, PLACE = "demo", "default"
JOB_NAME = "batch.kubernetes.io/job-name"
NODES, FEWEST = 4, 2
NOTICE = 15
"""Seconds of notice that a machine's end has, and the pods' grace."""
LOOK = 0.5
BEGIN_WITHIN = 300.0
"""Seconds until all nodes train."""


class Demo:
    """One job, from its manifests to its end."""

    def __init__(self, running: RunningCluster, say: Callable[[str], None]) -> None:
        config = KubeConfig.from_file(str(running.kubeconfig))
        self._running, self._say = running, say
        self._client = Client(config=config, namespace=PLACE)
        self._printed: dict[str, int] = {}
        self._pause = threading.Event()

    def apply(self, job: Iterable[dict[str, Any]]) -> None:
        """Create the objects of the job."""
        for each in job:
            self._say(f"kubectl apply: {each['kind']} {each['metadata']['name']}")
            self._client.create(from_dict(each))

    def pods(self) -> Sequence[Pod]:
        """Return the pods that run and are not told to end."""
        return [
            pod
            for pod in self._client.list(Pod, labels={JOB_NAME: NAME})
            if pod.metadata is not None
            and pod.metadata.deletionTimestamp is None
            and pod.status is not None
            and pod.status.phase == "Running"
        ]

    def train(self) -> tuple[Drill, list[RoundStory]]:
        """Interrupt the job until it ends. Returns what was done to it, and its rounds."""
        drill = Drill(
            DrillPlan(NODES, notice=NOTICE), PodFaults(self._running, self.pods), self._say
        )
        with self._viewed() as view:
            story: list[RoundStory] = []
            while not self.result():
                drill.feed(view.status())
                if len(view.rounds) > len(story):
                    story = view.story()
                self._print_logs()
                self._pause.wait(LOOK)
            self._print_logs()
        return drill, story

    def result(self) -> str:
        """Return how the Job has ended: Complete or Failed; "" while it goes on."""
        status = self._client.get(Job, NAME).status
        found = [each for each in (status and status.conditions) or () if each.status == "True"]
        return next((each.type for each in found if each.type in ("Complete", "Failed")), "")

    @contextmanager
    def _viewed(self) -> Iterator[PodRunView]:
        """Follow the run in the etcd of its first pods, once these are there."""
        deadline = steady() + BEGIN_WITHIN
        while len(found := self.pods()) < NODES:
            if steady() > deadline:
                raise EnvironmentFailure(f"{len(found)} of {NODES} pods run")
            self._pause.wait(LOOK)
        addresses = {
            pod.spec.hostname: pod.status.podIP for pod in found if pod.spec and pod.status
        }
        endpoints = [f"{addresses[f'{NAME}-{index}']}:{PORT}" for index in range(3)]
        with ExitStack() as stack:
            store = EtcdStore(endpoints)
            stack.callback(store.close)
            view = PodRunView(store, Keys(NAME), endpoints)
            view.follow()
            yield view

    def _print_logs(self) -> None:
        """Print what the pods have written since."""
        for pod in self._client.list(Pod, labels={JOB_NAME: NAME}):
            if pod.metadata is None or pod.metadata.uid is None:
                continue
            file, begin = (
                self._running.log(pod.metadata.uid),
                self._printed.get(pod.metadata.uid, 0),
            )
            data = file.read_bytes()[begin:] if file.exists() else b""
            whole = data[: data.rfind(b"\n") + 1]
            self._printed[pod.metadata.uid] = begin + len(whole)
            hostname = pod.spec.hostname if pod.spec is not None else ""
            for line in whole.decode(errors="replace").splitlines():
                self._say(f"{hostname}: {line}")


def account(drill: Drill, story: Sequence[RoundStory]) -> list[str]:
    """Return the report: what was done, and each round with where it went on from (pure)."""
    lines = ["interruptions:"]
    for each in drill.done:
        back = "not recovered" if each.recovered_at is None else f"whole by {each.recovered_at}"
        lines.append(f"  step {each.step:4d}  {each.injection.kind:<18} {back}")
    lines.append("rounds:")
    for its in story:
        round_ = its.round
        lines.append(
            f"  {round_.number:2d}  {len(round_.members)} nodes, from step {round_.resume.step}, "
            f"{its.repeated} repeated: {round_.reason}"
        )
    return lines


def main(script: str, *args: str) -> int:
    """Run the demo with that script. Returns the exit code: 0 if all was survived."""
    with Signals(), tempfile.TemporaryDirectory(prefix="se-demo-") as storage:
        try:
            return _demonstrate(script, args, storage)
        except SpotelasticError as error:
            print(f"spotelastic: {error}", file=sys.stderr)
            return error.exit_code
        except KeyboardInterrupt:
            return 130


def _demonstrate(script: str, args: Sequence[str], storage: str) -> int:
    say = _say
    with cluster.running() as running:
        say(f"an emulated cluster runs: export KUBECONFIG={running.kubeconfig}")
        demo = Demo(running, say)
        command = (str(Path(script).absolute()), *args)
        demo.apply(indexed_job(NAME, FEWEST, NODES, storage=storage, grace=NOTICE, args=command))
        drill, story = demo.train()
        for line in account(drill, story):
            say(line)
        result = demo.result()
        say(f"the Job is {result}")
        if drill.missing:
            say(f"it ended before: {', '.join(drill.missing)}: give it more steps")
        return 0 if result == "Complete" and not drill.missing else 1


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
