"""Lists the fields of an `ElasticJob`'s specification (pure).

They are the options of `up --kube` that make sense in a resource, in the spelling of Kubernetes.
Their schema is in `infra/helm/crds`.
"""

import re
from collections.abc import Mapping
from functools import cache

from spotelastic.client.config.option import ConfigField, config_fields
from spotelastic.client.config.panels import NETWORK
from spotelastic.client.kubernetes.pod_config import PodConfig

LEFT_OUT = frozenset(
    {
        # What the resource itself says, or what concerns a command alone.
        *("kube", "context", "namespace", "name", "plan", "yes", "json", "drill", "detach"),
        *("keep", "fresh", "report", "curve", "env_file", "fetch", "queue"),
        # What `up --kube` refuses, or what has no effect there.
        *("local", "notify", "notify_digest", "max_price", "max_cost", "keep_failed", "placement"),
        *("on_demand", "spot_patience", "build_secret", "environment", "gpu_memory", "disk"),
        *("region", "regions", "region_patience", "moves_per_day", "prefer_capacity"),
        *("read", "write", "mount"),
        *("control", "control_type", "force"),
    }
)
FIXED = frozenset({"storage", "bucket", "resume", "lease"})
"""Fields that are refused once they differ from those of a job that is there."""

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


def rendered() -> frozenset[str]:
    """Return the names of the options that an ElasticJob depends on; all others are a command's."""
    names = {field.name for field in fields().values()}
    return frozenset({*names, "name", "namespace", "env_file", "queue"})


def in_resource_terms(text: str) -> str:
    """Return a message about flags as one about a resource's fields."""

    def replaced(found: re.Match[str]) -> str:
        name = camel(found[1].replace("-", "_"))
        return f"spec.{name}" if name in fields() else found[0]

    return _FLAG.sub(replaced, text)
