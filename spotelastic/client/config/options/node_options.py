"""Declares the options of `up` about nodes."""

from collections.abc import Sequence
from dataclasses import dataclass

from spotelastic.aws.base.names import CONTROL_TYPE
from spotelastic.client.config.option import SCALE, option
from spotelastic.client.config.panels import NODES


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """The nodes that train a job: where they come from, how many, and of what type."""

    PANEL = NODES

    local: bool = option(
        False,
        "Use a cloud emulated on this machine (its bucket: ~/.spotelastic/s3), or AWS.",
        off="aws",
    )
    region: str | None = option(
        None,
        "AWS region; no effect with --local.",
        metavar="NAME",
        shown_default="from AWS's configuration",
    )
    min: int = option(
        1,
        "Minimum number of nodes.",
        effect=SCALE,
        metavar="N",
        stored=lambda job: job.settings.min_nodes,
    )
    max: int | None = option(
        None,
        "Maximum number of nodes.",
        effect=SCALE,
        metavar="N",
        shown_default="--min",
        stored=lambda job: job.settings.max_nodes,
    )
    instance_types: Sequence[str] = option(
        (),
        "Instance types for workers, preferred first (also: --instance-type).",
        metavar="T[,T...]",
        commas=True,
        shown_default="the cheapest GPU types in quota",
        stored=lambda job: ",".join(job.instance_types),
    )
    gpus: int | None = option(
        None, "In place of types: GPUs per node.", metavar="N", least=1, shown_default="any number"
    )
    gpu_memory: str | None = option(
        None, "In place of types: least memory per GPU, e.g. 40GB.", metavar="SIZE"
    )
    zones: str = option(
        "pack",
        "Zone placement: pack (one zone) or spread (all zones).",
        metavar="HOW",
        choices=("pack", "spread"),
        stored=lambda job: job.capacity.zones,
    )
    nproc_per_node: int | None = option(
        None,
        "Workers per node.",
        metavar="N",
        shown_default="one per GPU",
        stored=lambda job: job.settings.workers,
    )
    placement: str | None = option(
        None,
        "Put all worker nodes into one placement group.",
        metavar="cluster",
        choices=("cluster",),
    )
    disk: int | None = option(
        None,
        "Size of a worker's root disk in GiB.",
        metavar="GIB",
        least=1,
        shown_default="100, or its image's size + 50",
    )
    control: int | None = option(
        None,
        "Control nodes: 3, of which one may be lost at any time, or 1.",
        metavar="N",
        shown_default="3",
    )
    control_type: str | None = option(
        None, "Instance type of the control nodes.", metavar="T", shown_default=CONTROL_TYPE
    )
    replace_slow: bool = option(
        False,
        "Replace a node that keeps the others waiting: it is slower than they, for minutes.",
        off="no-replace-slow",
        stored=lambda job: job.settings.replace_slow,
    )
