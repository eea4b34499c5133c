"""What only a real cluster can show: `make test-kube`, on the current context of the kubeconfig.

Limits of memory, roles, network policies and images have no effect on the emulated cluster. Needs
`SPOTELASTIC_TEST_KUBE_IMAGE`, an image with torch and `spotelastic[kubernetes]`, and
`SPOTELASTIC_TEST_KUBE_STORAGE`, a URL that its pods reach. Makes a namespace, and removes it.
"""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from lightkube import Client
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace
from support.kube_cluster import NAME, KubeStory, trains

from spotelastic.errors import SpotelasticError
from spotelastic.kubernetes.provider import api as kube_api

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

IMAGE = os.environ.get("SPOTELASTIC_TEST_KUBE_IMAGE", "")
STORAGE = os.environ.get("SPOTELASTIC_TEST_KUBE_STORAGE", "")


@pytest.fixture
def story(tmp_path: Path) -> Iterator[KubeStory]:
    if not IMAGE or not STORAGE:
        pytest.skip("SPOTELASTIC_TEST_KUBE_IMAGE and SPOTELASTIC_TEST_KUBE_STORAGE are not set")
    try:
        kube_api.connect().found("ConfigMap", {"spotelastic/cluster": NAME})
    except SpotelasticError as error:
        pytest.skip(f"no cluster: {error}")
    name = f"spotelastic-test-{uuid.uuid4().hex[:8]}"
    with Client() as client:
        client.create(Namespace(metadata=ObjectMeta(name=name)))
        try:
            api, storage = kube_api.connect(namespace=name), f"{STORAGE.rstrip('/')}/{name}"
            yield KubeStory.of(api, tmp_path, dict(os.environ), IMAGE, storage)
        finally:
            client.delete(Namespace, name)


def test_a_job_with_the_rights_and_limits_of_its_pods(story: KubeStory) -> None:
    story.up(1, 2, 1_000_000, "--memory", "2Gi", "--shm-size", "512Mi")
    before = story.training(2)
    assert "begins at" in story.run("logs", NAME)
    victim = trains(before)[0]
    story.run("interrupt", victim, "--in", "20")
    story.until(lambda it: len(trains(it)) == 2 and victim not in trains(it), "a replacement")
    story.run("stop", NAME)
    story.run("restart", NAME, "--same-code")
    story.training(2, before["step"])
    story.run("down", NAME)
    assert not story.left()
