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
import yaml
from lightkube import ApiError, Client
from lightkube.codecs import from_dict
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace
from support.kubernetes.kube_cluster import NAME, SCRIPT, KubeStory, trains
from support.processes.patience import eventually

from spotelastic.errors import SpotelasticError
from spotelastic.kubernetes.elastic_job import API_VERSION, KIND
from spotelastic.kubernetes.provider import api_client as kube_api

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
        level = {"pod-security.kubernetes.io/enforce": "restricted"}
        client.create(Namespace(metadata=ObjectMeta(name=name, labels=level)))
        try:
            api, storage = kube_api.connect(namespace=name), f"{STORAGE.rstrip('/')}/{name}"
            story = KubeStory.of(api, tmp_path, dict(os.environ), IMAGE, storage)
            _install_operator(story)
            yield story
        finally:
            client.delete(Namespace, name)


def _install_operator(story: KubeStory) -> None:
    place = story.api.namespace
    told = story.run("kube", "operator", "--render", "--image", IMAGE, "--namespace", place)
    with Client() as kube:
        for each in yaml.safe_load_all(told):
            try:
                kube.create(from_dict(each))
            except ApiError as error:
                # The definition is the whole cluster's, and stays.
                assert error.status.code == 409 and each["kind"] == "CustomResourceDefinition"


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


def test_an_elastic_job_with_the_rights_of_its_operator(story: KubeStory) -> None:
    story.api.create(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "code"},
            "data": {"train.py": SCRIPT.read_text()},
        }
    )
    spec = {"image": IMAGE, "storage": story.storage, "codeFrom": {"configMap": "code"}}
    sizes = {"min": 1, "max": 2, "memory": "2Gi", "shmSize": "512Mi", "args": [1_000_000]}
    story.api.create(
        {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": NAME},
            "spec": {**spec, **sizes},
        }
    )

    def trains_on_two() -> bool:
        found = story.api.get(KIND, NAME)
        status = {} if found is None else found.get("status") or {}
        return status.get("nodes") == 2 and status.get("step", 0) > 0

    eventually(trains_on_two, "two nodes that train")
    assert story.status()["state"] == "running"
    story.api.delete(KIND, NAME)
    eventually(lambda: story.api.get(KIND, NAME) is None, "the end of the job")
    assert not story.left()
