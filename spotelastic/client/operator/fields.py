"""Lists the fields of an `ElasticJob`'s specification (pure).

They are the options of `up --kube` that make sense in a resource, in the spelling of Kubernetes.
"""

import re
from collections.abc import Mapping
from functools import cache

from spotelastic.client.config.option import ConfigField, config_fields, said
from spotelastic.client.config.panels import NETWORK
from spotelastic.client.kubernetes.pod_config import PodConfig

LEFT_OUT = frozenset(
    {
        # What the resource itself says, or what concerns a command alone.
        *("kube", "context", "namespace", "name", "plan", "yes", "json", "drill", "detach"),
        *("keep", "fresh", "report", "curve", "env_file", "fetch"),
        # What `up --kube` refuses, or what has no effect there.
        *("local", "notify", "notify_digest", "max_price", "max_cost", "keep_failed", "placement"),
        *("on_demand", "spot_patience", "build_secret", "environment", "gpu_memory", "disk"),
        *("queue", "region", "regions", "region_patience", "moves_per_day", "prefer_capacity"),
        *("read", "write", "mount"),
        *("control", "control_type"),
    }
)
FIXED = frozenset({"storage", "bucket", "resume", "lease"})
"""Fields that are refused once they differ from those of a job that is there."""
QUANTITIES = frozenset({"cpu", "memory", "shm_size"})
"""Texts that Kubernetes also takes as whole numbers."""
LEAST: Mapping[str, int] = {
    **dict.fromkeys(("min", "max", "nproc_per_node", "keep_last"), 1),
    **dict.fromkeys(("gpus", "keep_every", "max_restarts"), 0),
    **dict.fromkeys(("stall_timeout", "exit_barrier_timeout"), 0),
}
"""The least values of numbers that are checked elsewhere for a command line."""
WORDS: Mapping[str, str] = {
    "pod_template": "What is merged over the workers' pods, as kubectl patch does: metadata "
    "(labels and annotations) and spec.",
    "script": "The script: a path in the image, or among the files of codeFrom.",
    "args": "Arguments of the script.",
    "resume": "Continue an earlier run.",
    "bucket": "Bucket for checkpoints, in place of storage.",
    "image": "Container image with the script, its packages and spotelastic.",
    "env": "Environment variables of the script.",
    "secret": "Variables whose values are in the Secret that secretsFrom names.",
    "min": "Minimum number of pods.",
    "max": "Maximum number of pods.",
    "gpus": "GPUs of each pod.",
    "instance_types": "Instance types that pods may run on, preferred first.",
    "resource": "Further resources of a pod, e.g. vpc.amazonaws.com/efa: 4.",
    "node_selector": "Labels that a pod's machine must have.",
    "zones": "Spread the pods over the zones (spread), or keep them in one (pack).",
}
"""Words for fields whose flags say something that holds for a command line alone."""
DEFAULTS: Mapping[str, str] = {
    "instance_types": "any",
    "gpus": "none",
    "secrets_from": "the name of the resource",
    "nproc_per_node": "one per GPU, else one",
    "storage": "s3://bucket/NAME/checkpoints with bucket",
    "lease": "8",
    "bucket": "none",
}

_FLAG = re.compile(r"--([a-z][a-z-]*)")


def camel(name: str) -> str:
    """Return a field's name as a resource spells it: max_restarts is maxRestarts."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


@cache
def fields() -> Mapping[str, ConfigField]:
    """Return the options by their names in a resource."""
    return {
        camel(field.name): field
        for field in config_fields(PodConfig)
        if field.name not in LEFT_OUT and field.panel != NETWORK
    }


def in_resource_terms(text: str) -> str:
    """Return a message about flags as one about a resource's fields."""

    def replaced(found: re.Match[str]) -> str:
        name = camel(found[1].replace("-", "_"))
        return f"spec.{name}" if name in fields() else found[0]

    return _FLAG.sub(replaced, text)


def described(field: ConfigField) -> str:
    """Return what a field means, and its default."""
    default = DEFAULTS.get(field.name) or field.shown_default
    if default is None and field.default not in (None, (), False, ""):
        default = said(field.default)
    told = [
        WORDS.get(field.name, field.help),
        f"Default: {default}." if default else "",
        "Cannot be changed once the job is there." if field.name in FIXED else "",
    ]
    return in_resource_terms(" ".join(filter(None, told))).replace("spec.", "")
