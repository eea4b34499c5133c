"""Jobs as pods for tests, and the schemas that their manifests have to keep."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import kubernetes_validate
import yaml
from support.places import EXAMPLES

from spotelastic.kubernetes.job_as_pods import PodJob, PodResources, SecretKey

OLDEST, NEWEST = "1.31", "1.37"
"""The first release with all that is used, and the last one whose schema is at hand."""
PORT = 29400
"""Of the etcd members of an Indexed Job."""


def pod_job(**given: Any) -> PodJob:
    """A job with a GPU, a secret, and the other values that are given."""
    values: dict[str, Any] = {
        "name": "train",
        "image": "example.com/team/train:1",
        "storage": "s3://team-data/train",
        "resources": PodResources(gpus=1, memory="64Gi"),
        "secrets": {"WANDB_API_KEY": SecretKey("train", "WANDB_API_KEY")},
    }
    return PodJob(**values | given)


def example_job() -> list[dict[str, Any]]:
    """The manifests of the example of a job without the operator."""
    return list(yaml.safe_load_all((EXAMPLES / "kubernetes/job.yaml").read_text()))


def indexed_job(
    name: str, low: int, high: int, *, storage: str, grace: int, args: Sequence[str]
) -> list[dict[str, Any]]:
    """The example of a job without the operator, changed as its comments say, for this machine."""
    text = (EXAMPLES / "kubernetes/job.yaml").read_text().replace("gpt", name)
    made: list[dict[str, Any]] = list(yaml.safe_load_all(text))
    spec = made[-1]["spec"]
    spec |= {"parallelism": high, "completions": high, "maxFailedIndexes": high - low}
    pod = spec["template"]["spec"]
    pod["terminationGracePeriodSeconds"] = grace
    (container,) = pod["containers"]
    container["resources"] = {}
    found = [each for each in container["args"] if each.startswith("--rdzv")]
    sizes = [f"--nnodes={low}:{high}", f"--grace-period={grace}", f"--storage={storage}"]
    container["args"] = [*sizes, *found, "--replicate=off", *args]
    return made


def of_kind(kind: str, made: Iterable[Mapping[str, Any]]) -> Any:
    """The one manifest of this kind."""
    (found,) = (each for each in made if each["kind"] == kind)
    return found


def check_schema(manifest: Mapping[str, Any]) -> None:
    """Check against Kubernetes' OpenAPI schemas; a field that they do not know is an error."""
    for version in (OLDEST, NEWEST):
        assert kubernetes_validate.validate(manifest, version, strict=True) == version
