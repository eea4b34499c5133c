"""Runs a control node: one etcd member and one controller, each restarted when it dies."""

import logging
import threading
import time
from collections.abc import Sequence
from functools import partial

from spotelastic_checkpoints import addresses

from spotelastic.aws.artifacts import boot_artifacts
from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.identity import BUCKET, MEMBER, Identity, from_imds
from spotelastic.aws.base.names import PEER_PORT, Names
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.aws.node import etcd_identity
from spotelastic.bootstrap import context
from spotelastic.bootstrap.reports import reporting
from spotelastic.bootstrap.supervisor import SupervisedProcess, supervise
from spotelastic.certificates import MEMBER_NAME
from spotelastic.clock import wall
from spotelastic.errors import told
from spotelastic.model.job import JobSpec
from spotelastic.model.progress import Event
from spotelastic.store.tls import TlsFiles

logger = logging.getLogger(__name__)


KEEPER = "spotelastic.client.moving.keeper"
"""The module that moves a job between regions: it is the client's."""
KEEPER_LOOKS, KEEPER_AGAIN = 60.0, 5.0
"""Seconds between two looks whether there is to be one, and until a dead one is started again."""
SERVES_WITHIN = 60.0
"""Seconds that a restarted etcd member has until it serves."""


def run(me: Identity) -> int:
    """Run the control node until it is told to end. Returns the exit code."""
    from spotelastic.controller.etcd.member_lifecycle import MemberLifecycle, MemberLifecycleConfig
    from spotelastic.store.etcd_server.process import MemberConfig

    aws = Aws(me.region, account=me.account)
    spec = context.job(aws, me)
    context.log_as("boot", me.instance, spec.env)
    name = me.tag(MEMBER)
    place = etcd_identity.take(aws, spec.cluster, name, me, logger.info, spec.demands)
    parameter = Names(spec.cluster).member_certificate(name)
    tls = context.certificate(aws, parameter)
    hosts = [addresses.split(endpoint)[0] for endpoint in spec.etcd]
    peers = {
        each: addresses.join(host, PEER_PORT)
        for each, host in zip(spec.etcd_members, hosts, strict=True)
    }
    endpoints = dict(zip(spec.etcd_members, spec.etcd, strict=True))
    config = MemberConfig(
        name=name,
        data_dir=place,
        client=endpoints[name],
        peer=peers[name],
        cluster=peers,
        token=spec.cluster,
        tls=tls,
        peer_name=MEMBER_NAME,
    )
    objects = BucketObjects(aws, me.tag(BUCKET), spec.cluster)
    if spec.etcd_version:
        context.install_etcd(objects, boot_artifacts.RELEASES[spec.etcd_version])
    seat = MemberLifecycle(
        MemberLifecycleConfig(config, place, endpoints, context.home() / "etcd.log"), objects
    )

    def came_back(died_at: float) -> None:
        """Tells the run about it, once the member serves again."""
        seen_at = wall()
        seat.etcd.await_service(SERVES_WITHIN)
        _record_outage(spec, tls, me, died_at, seen_at)

    context.keep_fresh(aws, parameter)
    threading.Thread(target=seat.follow, name="seat", daemon=True).start()
    its = (spec.cluster, me.region, me.tag(BUCKET), me.instance, name)
    keep = partial(_run_keeper, objects, its, moves=spec.regions is not None)
    threading.Thread(target=keep, name="keeper", daemon=True).start()
    return supervise(
        (
            SupervisedProcess("etcd", seat.start, restarted=came_back),
            SupervisedProcess("controller", partial(context.start, "controller")),
        )
    )


def _run_keeper(objects: BucketObjects, its: Sequence[str], *, moves: bool) -> None:
    """Run the keeper from when on the job moves by itself, which a later `up` may ask for."""
    while True:
        try:
            if moves:
                code = context.start_module(KEEPER, its).wait()
                logger.warning(f"the keeper ended with {code}: starting it again")
                time.sleep(KEEPER_AGAIN)
                continue
            time.sleep(KEEPER_LOOKS)
            job = objects.job()
            moves = job is not None and job.regions is not None
        except Exception as error:  # the next look may succeed
            logger.warning(told(error), exc_info=True)
            time.sleep(KEEPER_AGAIN)


def controller() -> int:
    """Run the controller, in a process of its own."""
    from spotelastic.aws.provider.calls import CallCount
    from spotelastic.aws.provider.cloud import connect
    from spotelastic.controller.loop.controller_loop import run
    from spotelastic.controller.model.config import ControllerConfig
    from spotelastic.linux import name_process

    name_process("se-controller")
    context.log_as("controller")
    me = from_imds(context.imds())
    aws = Aws(me.region, account=me.account)
    calls = CallCount(aws)
    spec = context.job(aws, me)
    context.log_as("controller", me.instance, spec.env)
    tls = context.certificate(aws, Names(spec.cluster).member_certificate(me.tag(MEMBER)))
    config = ControllerConfig(spec, me.instance, me.address, tls)
    return run(config, connect(aws, spec, me.tag(BUCKET), calls))


def _record_outage(
    spec: JobSpec, tls: TlsFiles, me: Identity, died_at: float, seen_at: float
) -> None:
    from spotelastic.rendezvous.membership import record

    back_at, member = wall(), me.tag(MEMBER)
    event = Event(
        died_at,
        "etcd",
        f"etcd member {member} on {me.instance} died and was back {back_at - died_at:.2f} s later",
        me.instance,
        {"at": died_at, "seen_at": seen_at, "back_at": back_at, "member": member},
    )
    with reporting(spec, me.instance, tls) as reports:
        record(reports.store, reports.keys, event)
