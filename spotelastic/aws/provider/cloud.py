"""Puts together what a controller needs of AWS. The local cloud has the same API."""

from functools import partial

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.names import Names
from spotelastic.aws.compute.prices import AwsPrices
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.aws.provider import queues
from spotelastic.aws.provider.calls import CallCount
from spotelastic.aws.provider.group_capacity import AwsCapacity
from spotelastic.aws.provider.receivers import receivers
from spotelastic.cloud.port import Cloud
from spotelastic.model.job import JobSpec


def connect(aws: Aws, spec: JobSpec, bucket: str, calls: CallCount | None = None) -> Cloud:
    """Return what the cluster of this job is in.

    On-demand prices are looked up beside. `calls` has counted the calls so far.
    """
    calls = calls or CallCount(aws)
    prices = AwsPrices(aws, disk_gib=spec.disk_gib, disk_mib_s=spec.disk_mib_s)
    prices.prepare((*spec.instance_types, spec.control_type))
    return Cloud(
        provider=AwsCapacity(aws, spec.cluster, bucket, spec.service_role, spec.control_type),
        events=queues.events(aws, spec.queue),
        commands=queues.commands(aws, Names(spec.cluster).commands),
        prices=prices,
        objects=BucketObjects(aws, bucket, spec.cluster),
        calls=calls.so_far,
        receivers=partial(receivers, aws, spec.cluster),
    )
