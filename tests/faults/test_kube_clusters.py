"""A cluster in a namespace, from `up --kube` to `down`, and what befalls it in between."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from lightkube.resources.core_v1 import Pod
from spotelastic_checkpoints.storage.open import open_storage
from support.kubernetes.kube_client import Kube, emulated
from support.kubernetes.kube_cluster import NAME, KubeStory, trains
from support.processes.patience import eventually

from spotelastic import client
from spotelastic.client.kubernetes.pod_config import PodConfig
from spotelastic.client.targets.kube_target import KubePlace, KubeTarget
from spotelastic.kubernetes.pod_files import MOST_CODE
from spotelastic.web.server.source import TargetSource

pytestmark = [pytest.mark.faults, pytest.mark.soak, pytest.mark.timeout(900)]

ENDLESS = 1_000_000


@pytest.fixture
def kube() -> Iterator[Kube]:
    with emulated() as found:
        yield found


@pytest.fixture
def story(kube: Kube, tmp_path: Path) -> KubeStory:
    return KubeStory.emulated(kube, tmp_path)


def test_a_cluster_does_what_commands_ask_and_down_leaves_nothing(story: KubeStory) -> None:
    told = story.up(2, 3, ENDLESS)
    assert "stays up" in told and "--kube" in told
    before = story.training(3)
    assert "train" in story.run("ls", "--kube")
    story.run("scale", NAME, "--kube", "--max", "2")
    smaller = story.training(2, before["step"])
    assert "begins at" in story.run("logs", NAME, "--kube")
    victim = trains(smaller)[0]
    assert victim in story.run("interrupt", victim, "--kube", "--in", "15")
    after = story.until(
        lambda it: len(trains(it)) == 2 and victim not in trains(it), "another node in its place"
    )
    story.training(2, after["step"])
    assert "leave" in story.run("events", NAME, "--kube")
    story.run("stop", NAME, "--kube")
    stopped = story.status()
    assert stopped["state"] == "stopped"
    eventually(lambda: not story.pods("worker"), "the end of all workers")
    story.run("restart", NAME, "--kube", "--same-code")
    story.training(2, stopped["step"])
    assert NAME in story.run("report", NAME, "--kube")
    story.run("down", NAME, "--kube")
    assert not story.left()
    assert "there is no cluster" in story.run("down", NAME, "--kube", code=2)


def test_the_control_pod_is_killed_and_lost_and_training_goes_on(
    kube: Kube, story: KubeStory
) -> None:
    story.up(2, 2, ENDLESS)
    before = story.training(2)
    (pod,) = story.pods("control-pod")
    kube.cluster.cause("kill-pod", namespace="default", pod=pod["metadata"]["name"])
    again = story.training(2, before["step"] + 50)
    (pod,) = story.pods("control-pod")
    kube.cluster.cause("lose-node", node=pod["spec"]["nodeName"])
    eventually(
        lambda: any(
            each["metadata"]["uid"] != pod["metadata"]["uid"]
            and each.get("status", {}).get("phase") == "Running"
            for each in story.pods("control-pod")
        ),
        "another control pod",
    )
    story.training(2, again["step"] + 50)
    story.run("scale", NAME, "--kube", "--max", "3")
    story.training(3)
    story.run("down", NAME, "--kube")


def test_a_node_is_lost_and_replaced(kube: Kube, story: KubeStory) -> None:
    story.up(2, 3, ENDLESS)
    before = story.training(3)
    (control,) = story.pods("control-pod")
    pod = next(
        each
        for each in story.pods("worker")
        if each["spec"]["nodeName"] != control["spec"]["nodeName"]
    )
    kube.cluster.cause("lose-node", node=pod["spec"]["nodeName"])
    story.until(
        lambda it: len(trains(it)) == 3 and pod["metadata"]["name"] not in trains(it),
        "three nodes without the lost one",
    )
    story.training(3, before["step"] + 50)
    story.run("down", NAME, "--kube")


def test_an_evicted_node_saves_first_and_its_replacement_waits_for_its_image(
    kube: Kube, story: KubeStory
) -> None:
    story.up(2, 3, ENDLESS)
    before = story.training(3)
    victim = trains(before)[0]
    pod = kube.client.get(Pod, victim)
    kube.cluster.cause("missing-image", image=story.image)
    kube.evict(pod)
    smaller = story.until(
        lambda it: len(trains(it)) == 2 and victim not in trains(it), "two nodes that go on"
    )
    eventually(lambda: "leaves after step" in kube.log(pod), "what it says at its end")
    story.training(2, smaller["step"])
    assert "begins at" in story.run("logs", NAME, "--kube"), "although a pod has not begun"
    kube.cluster.cause("image-found", image=story.image)
    story.training(3)
    story.run("down", NAME, "--kube")


def test_down_that_is_killed_anywhere_can_be_run_again(story: KubeStory) -> None:
    story.up(1, 2, ENDLESS)
    for seen in ("ending its pods", "objects are ending"):
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "spotelastic", "down", NAME, "--kube"],
            cwd=story.folder / "work", env=story.environ, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            if seen in line:
                break
        process.kill()
        process.wait()
        process.stdout.close()
    if story.left():
        story.run("down", NAME, "--kube")
    assert not story.left()


def test_a_large_folder_goes_by_way_of_the_bucket(story: KubeStory, bucket: str) -> None:
    story = replace(story, storage=f"s3://{bucket}/gpt")
    work = story.folder / "work"
    names = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION")
    told = {name: os.environ[name] for name in names}
    story.environ.update(told)
    (work / "vocabulary.bin").write_bytes(os.urandom(MOST_CODE))
    story.up(1, 2, ENDLESS, *(f"--env={name}={value}" for name, value in told.items()))
    before = story.training(2)
    story.run("stop", NAME, "--kube")
    script = work / "train.py"
    script.write_text(f'print("new code", flush=True)\n{script.read_text()}')
    story.run("restart", NAME, "--kube")
    story.training(2, before["step"])
    assert "new code" in story.run("logs", NAME, "--kube")
    story.run("down", NAME, "--kube")
    assert not story.left()
    assert len(open_storage(story.storage).keys("code/")) == 2


def test_nodes_are_interrupted_by_a_command_and_the_dashboard_shows_it(story: KubeStory) -> None:
    story.up(2, 3, ENDLESS)
    before = story.training(3)
    source = TargetSource(KubeTarget(KubePlace(), story.api))
    assert [(each.name, each.state) for each in source.clusters()] == [(NAME, "running")]
    struck = trains(before)[:2]
    for node, more in zip(struck, (("--kind", "loss"), ("--in", "10")), strict=True):
        assert node in story.run("interrupt", node, *more, "--name", NAME, "--kube")
    after = story.training(3, before["step"])
    look = source.look(NAME)
    assert not look.trouble and set(look.facts["nodes"]) == set(trains(after))
    for section, text in (("head", "running"), ("timeline", struck[0]), ("chart", "<svg")):
        assert text in look.sections[section]
    told = look.sections["interruptions"]
    assert told.count("asked to leave") == 2 and all(node in told for node in struck)
    output = source.output(NAME, None, 0)
    assert any("begins at" in line["text"] for line in output["lines"])
    known = {line["id"] for line in output["lines"]}
    again = source.output(NAME, None, output["next"])
    later = [line for line in again["lines"] if line["id"] not in known]
    assert not any("begins at" in line["text"] for line in later)
    assert "taken down" in source.act(NAME, "down", {"typed": NAME}, lambda _: None)
    assert not story.left()


def test_a_program_brings_a_cluster_up_and_finds_it(
    story: KubeStory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", story.environ["KUBECONFIG"])
    monkeypatch.chdir(story.folder / "work")
    config = PodConfig(
        "train.py", args=(str(ENDLESS),), kube=True, image=story.image, storage=story.storage,
        min=1, max=2, grace_period=20,
    )  # fmt: skip
    told: list[str] = []
    with client.up(config, on_update=lambda update: told.append(str(update))) as cluster:
        assert any("the ElasticJob train is applied" in line for line in told)
        assert cluster.status().state == "running"
        assert [each.name for each in client.clusters(kube=True)] == [NAME]
        found = client.find(kube=True, namespace=story.api.namespace)
        assert found.scale(max=1).name == NAME
        eventually(lambda: len(story.pods("worker")) == 1, "a single node")
        assert found.stop().state == "stopped"
    assert not story.left()


def test_up_shows_the_report_at_the_end_and_leaves_only_checkpoints(story: KubeStory) -> None:
    told = story.run(
        *("up", "--kube", "--image", story.image, "--storage", story.storage, "--min", "2"),
        *("--grace-period", "20", "--lease", "3", "--secret", "PASSWORD", "train.py", "300"),
        PASSWORD="hidden",
    )
    assert "goodput" in told and "300" in told
    assert "hidden" not in told
    assert not story.left()
    assert "300" in story.run("ckpt", "ls", story.storage)


def test_a_job_that_fails_says_why_and_leaves_nothing(story: KubeStory) -> None:
    script = story.folder / "work" / "train.py"
    script.write_text('raise ValueError("wrong data")')
    told = story.run(
        *("up", "--kube", "--image", story.image, "--storage", story.storage, "--min", "1"),
        *("--max-restarts", "0", "--grace-period", "20", "--lease", "3", "train.py"),
        code=1,
    )
    assert "wrong data" in told
    assert not story.left()
