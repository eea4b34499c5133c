"""Jobs as pods for tests, and the schemas that their manifests have to keep."""

from collections.abc import Iterable, Mapping
from typing import Any

import kubernetes_validate

from spotelastic.kubernetes.job_as_pods import PodJob, PodResources, SecretKey
from spotelastic.model.job import Settings

OLDEST, NEWEST = "1.31", "1.37"
"""The first release with all that is used, and the last one whose schema is at hand."""


def pod_job(minimum: int = 2, maximum: int = 8, **given: Any) -> PodJob:
    """A job with a GPU, a secret, and the other values that are given."""
    values: dict[str, Any] = {
        "name": "train",
        "image": "example.com/team/train:1",
        "command": ("train.py", "--epochs", "3"),
        "settings": Settings(minimum, maximum),
        "storage": "s3://team-data/train",
        "resources": PodResources(gpus=1, memory="64Gi"),
        "secrets": {"WANDB_API_KEY": SecretKey("train", "WANDB_API_KEY")},
    }
    return PodJob(**values | given)


def of_kind(kind: str, made: Iterable[Mapping[str, Any]]) -> Any:
    """The one manifest of this kind."""
    (found,) = (each for each in made if each["kind"] == kind)
    return found


def check_schema(manifest: Mapping[str, Any]) -> None:
    """Check against Kubernetes' OpenAPI schemas; a field that they do not know is an error."""
    for version in (OLDEST, NEWEST):
        assert kubernetes_validate.validate(manifest, version, strict=True) == version
