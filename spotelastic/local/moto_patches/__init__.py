"""Applies every change that the local cloud makes to moto 5.2.5, and logs each with its reason.

locks.py        one lock for EC2, Auto Scaling, CloudFormation, EventBridge; one for S3 writes
ec2.py          launches, states, spot prices
network.py      addresses, interfaces, volumes
object_calls.py      objects as files
log_calls.py         log groups as files
group_calls.py       Auto Scaling groups
schedules.py    scheduled actions of groups
stacks.py       CloudFormation stacks
resources.py    resources of stacks that moto lacks
accounts.py     quotas, service-linked roles
images.py       machine images
"""

from collections.abc import Callable
from pathlib import Path
from threading import RLock

from spotelastic.local.autoscaling.regional_groups import RegionalScaling
from spotelastic.local.base.agenda import Agenda
from spotelastic.local.base.kept_logs import KeptLogs
from spotelastic.local.base.kept_objects import KeptBuckets
from spotelastic.local.instances.machines import LocalInstances
from spotelastic.local.instances.power import Power
from spotelastic.local.instances.spot_market import SpotMarket
from spotelastic.local.moto_patches import (
    accounts,
    ec2,
    group_calls,
    images,
    locks,
    log_calls,
    network,
    object_calls,
    resources,  # noqa: F401 - moto finds its classes by their base class
    schedules,
    stacks,
)
from spotelastic.local.moto_patches.patch import Patches


def install(
    *,
    lock: RLock,
    agenda: Agenda,
    machines: LocalInstances,
    scaling: RegionalScaling,
    market: SpotMarket,
    power: Power,
    volumes: Path,
    buckets_folder: Path,
    logs_folder: Path,
    stack_deleted: Callable[[], object],
) -> Patches:
    """Apply all patches."""
    patches = Patches()
    locks.install(patches, lock)
    ec2.install(patches, machines, market, power)
    network.install(patches, power, volumes)
    group_calls.install(patches, scaling)
    object_calls.install(patches, KeptBuckets(buckets_folder))
    log_calls.install(patches, KeptLogs(logs_folder))
    schedules.install(patches, agenda, scaling)
    stacks.install(patches, scaling, stack_deleted)
    images.install(patches)
    accounts.install(patches)
    return patches
