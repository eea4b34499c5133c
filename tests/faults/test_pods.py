"""The example of a job without the operator on the emulated cluster, and what befalls its pods.

Each pod runs `spotelastic run`; the first three have an etcd member each. A pod that takes the
place of another has another address below the same name.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lightkube import ApiError
from lightkube.resources.batch_v1 import Job
from support.kubernetes.kube_client import Kube, emulated
from support.kubernetes.pod_jobs import indexed_job
from support.places import TESTS
from support.processes.patience import eventually

pytestmark = [pytest.mark.faults, pytest.mark.soak, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parents[1] / "support/scripts/train_small.py"
DEMO = TESTS.parent / "examples/train_gpt.py"
ENDLESS = 100_000
NAME = "train"


class PodStory:
    """A job on a cluster, by what its pods write."""

    def __init__(self, kube: Kube, storage: Path) -> None:
        self.kube, self._storage = kube, storage
        self.known: dict[str, Any] = {}
        """All pods that were seen running, by uid."""

    def begin(self, low: int, high: int, steps: int = ENDLESS) -> None:
        args = ("--snapshot-every=20", "--checkpoint-every=100", str(SCRIPT), str(steps))
        storage = str(self._storage)
        self.kube.create(*indexed_job(NAME, low, high, storage=storage, grace=20, args=args))

    def running(self, count: int) -> dict[int, Any]:
        found = self.kube.running(NAME, count)
        self.known |= {pod.metadata.uid: pod for pod in found.values()}
        return found

    def rounds(self) -> list[tuple[int, int, int]]:
        """Number, nodes, and the step that it goes on from, of each round that began anywhere."""
        told = "\n".join(map(self.kube.log, self.known.values()))
        found = re.findall(r"round (\d+) \(.*?(\d+) workers?, (?:from step (\d+)|no saved)", told)
        return sorted({(int(number), int(size), int(step or 0)) for number, size, step in found})

    def trains(self, size: int, after: int) -> tuple[int, int, int]:
        """The first round of that size after a number, once its workers have begun."""

        def begun() -> bool:
            return any(number > after and nodes == size for number, nodes, _ in self.rounds())

        eventually(begun, f"a round of {size}")
        found = next(each for each in self.rounds() if each[0] > after and each[1] == size)
        line = f"begins at {found[2]} of {size}"
        eventually(lambda: any(line in self.kube.log(pod) for pod in self.known.values()), line)
        return found

    def sums(self) -> set[str]:
        """The final parameters of all workers that have finished."""
        told = (self.kube.log(pod) for pod in self.known.values())
        return {found for text in told for found in re.findall(r"sum (\S+)", text)}


@pytest.fixture
def story(tmp_path: Path) -> Iterator[PodStory]:
    with emulated() as kube:
        yield PodStory(kube, tmp_path / "checkpoints")


def test_an_evicted_pod_saves_first_and_its_replacement_joins_under_its_name(
    story: PodStory,
) -> None:
    story.begin(2, 3, steps=700)
    pods = story.running(3)
    first, _, _ = story.trains(3, after=0)
    story.kube.evict(pods[1])
    smaller, _, step = story.trains(2, after=first)
    assert f"leaves after step {step}" in story.kube.log(pods[1]), "no step is lost"
    replaced = story.running(3)[1]
    assert replaced.status.podIP != pods[1].status.podIP
    story.trains(3, after=smaller)
    eventually(lambda: "Complete" in story.kube.conditions(NAME), "the job's success")
    assert len(story.sums()) == 1, "all workers end with the same parameters"
    status = story.kube.client.get(Job, NAME).status
    assert status is not None and not status.failed


def test_a_node_lost_without_a_notice_is_left_out_and_replaced(story: PodStory) -> None:
    story.begin(2, 3)
    pods = story.running(3)
    first, _, _ = story.trains(3, after=0)
    story.kube.cluster.cause("lose-node", node=pods[2].spec.nodeName)
    smaller = story.trains(2, after=first)[0]
    story.running(3)
    story.trains(3, after=smaller)


def test_the_replacement_whose_image_cannot_be_pulled_is_awaited(story: PodStory) -> None:
    story.begin(2, 3)
    pods = story.running(3)
    first, _, _ = story.trains(3, after=0)
    image = pods[0].spec.containers[0].image
    story.kube.cluster.cause("missing-image", image=image)
    story.kube.evict(pods[0])
    smaller, _, _ = story.trains(2, after=first)
    story.kube.cluster.cause("image-found", image=image)
    story.running(3)
    story.trains(3, after=smaller)


def test_the_demo_survives_its_four_interruptions() -> None:
    command = (
        sys.executable,
        "-m",
        "support.emulated_kubernetes.demo",
        str(DEMO),
        "--steps",
        "400",
    )
    done = subprocess.run(
        command, cwd=TESTS, capture_output=True, text=True, check=False, timeout=550
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    report = done.stdout.partition("interruptions:\n")[2]
    kinds = [line.split()[2] for line in report.splitlines()[:4]]
    assert kinds == ["spot_interruption", "loss", "worker", "etcd"]
    assert "not recovered" not in report and "the Job is Complete" in report


def test_a_budget_keeps_the_last_host_of_etcd(story: PodStory) -> None:
    story.begin(1, 3)
    pods = story.running(3)
    story.trains(3, after=0)
    story.kube.cluster.cause("missing-image", image=pods[0].spec.containers[0].image)
    story.kube.evict(pods[0])
    story.kube.evict(pods[1])
    eventually(lambda: all(map(story.kube.is_gone, (pods[0], pods[1]))), "the end of two")
    with pytest.raises(ApiError):
        story.kube.evict(pods[2])
