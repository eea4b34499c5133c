"""Provides an AWS account inside the test's process: the local cloud without its instances'
processes.

Every call passes boto3's own events. There a test can count it, let it fail, or let the calling
process "die". `remains.py` then searches everything that the account holds.
"""

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import RLock
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from botocore.exceptions import ReadTimeoutError
from support.strict import Strictness
from support.strict.authority import Authority
from support.unkind.conditions import (
    KIND,
    Conditions,
    ConditionsInForce,
    from_environment,
)

from spotelastic.clock import wall
from spotelastic.local.base.agenda import Agenda
from spotelastic.local.cloud import ADMINISTRATOR
from spotelastic.local.instances.power import Layout

if TYPE_CHECKING:
    from support.strict.reservations import Reserved

REGION = "us-east-1"
REGIONS = (REGION, "us-west-2")
"""Regions in which groups have instances."""
NETWORK = "127.96.0.0/16"


class Still:
    """Machines that are on at once, off at once, and in which nothing runs (as `Power`)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def layout(self, instance: str) -> Layout:
        folder = self._folder / instance
        return Layout(folder / "home", folder / "console.log", folder / "volumes", folder / "shm")

    def on(self, instance: str, environment: Any) -> Future[None]:
        return self.off(instance)

    def off(self, instance: str) -> Future[None]:
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def shut_down(self, instance: str) -> Future[None]:
        return self.off(instance)

    def hasten(self, instance: str) -> None: ...


class Deaf:
    """No metadata service: there is nobody to ask it (as `MetadataServer`)."""

    def __init__(self, *_: object) -> None: ...

    def open(self, instance: str, address: str) -> None: ...

    def close_address(self, address: str) -> None: ...


class UpToDate:
    """The cloud's lock. What is due is done before a call, so that a test sees what it caused."""

    def __init__(self, lock: RLock, agenda: Agenda) -> None:
        self._lock, self._agenda = lock, agenda

    def __enter__(self) -> None:
        self._lock.acquire()
        self._agenda.run_due()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


_in_force: list[ConditionsInForce] = []
"""The conditions of the account that there is now."""


@contextmanager
def truth() -> Iterator[None]:
    """What the test itself asks is answered as it is, whatever the conditions are."""
    (held,) = _in_force
    before, held.now = held.now, KIND
    try:
        yield
    finally:
        held.now = before


def is_kind() -> bool:
    """Whether the account answers at once, and as it is, so that the same takes the same calls."""
    return _in_force[0].now == KIND


@contextmanager
def _environment_of_the_account() -> Iterator[None]:
    ours = {"AWS_DEFAULT_REGION": REGION, "MOTO_EC2_LOAD_DEFAULT_AMIS": "false"}
    before = {name: os.environ.get(name) for name in (*ours, "AWS_ENDPOINT_URL")}
    os.environ.update(ours)
    os.environ.pop("AWS_ENDPOINT_URL", None)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


@contextmanager
def account(
    folder: Path, conditions: Conditions | None = None, reserved: Sequence["Reserved"] = ()
) -> Iterator[Authority]:
    """All boto3 clients of the process have this account, with what is `reserved`, and no other,
    until the block ends; without `conditions` it has those that the environment asks for.
    """
    from moto import mock_aws
    from moto.autoscaling.models import autoscaling_backends
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.events.models import events_backends
    from support.unkind import detaching, stale
    from support.unkind.slow_parts import SlowGroups, SlowInstances

    from spotelastic.local import moto_patches
    from spotelastic.local.autoscaling.regional_groups import RegionalScaling
    from spotelastic.local.base import eventbridge_messages as events
    from spotelastic.local.instances import machines
    from spotelastic.local.instances.spot_market import SpotMarket

    lock, market, power = RLock(), SpotMarket(), Still(folder)
    strict = Strictness(reservations={each.id: each for each in reserved})
    in_force = ConditionsInForce(conditions or from_environment(os.environ))
    agenda = Agenda(lock)
    with patch.object(machines, "MetadataServer", Deaf), _environment_of_the_account(), mock_aws():
        os.environ["AWS_ACCESS_KEY_ID"] = ADMINISTRATOR  # mock_aws puts back what was there
        bus = events_backends[DEFAULT_ACCOUNT_ID][REGION]  # mock_aws has made another one
        all_machines = SlowInstances(
            in_force,
            agenda=agenda,
            power=power,
            market=market,
            imds_port=0,
            emit=lambda event: events.put(bus, event, wall()),
        )
        groups = partial(
            SlowGroups,
            in_force,
            machines=all_machines,
            market=market,
            agenda=agenda,
            emit=lambda event: events.put(bus, event, wall()),
        )
        made = autoscaling_backends[DEFAULT_ACCOUNT_ID]
        scaling = RegionalScaling({region: groups(backend=made[region]) for region in REGIONS})
        all_machines.changed = scaling.machine_changed
        due: Any = UpToDate(lock, agenda)
        patches = moto_patches.install(
            lock=due,
            agenda=agenda,
            machines=all_machines,
            scaling=scaling,
            market=market,
            power=power,  # type: ignore[arg-type]
            volumes=folder / "volumes",
            buckets_folder=folder / "buckets",
            logs_folder=folder / "output",
            stack_deleted=lambda: None,
        )
        strict.install(patches, due, all_machines, partial(stale.is_known, in_force))
        detaching.install(patches, agenda, in_force)
        stale.install(patches, in_force)
        agenda.start()
        _in_force.append(in_force)
        try:
            yield strict.authority
        finally:
            _in_force.remove(in_force)
            agenda.close()
            patches.undo()


def forget() -> None:
    """What has ended is told no more, as an hour later on AWS: a long test stays fast."""
    from moto.cloudformation.models import cloudformation_backends
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.ec2.models import ec2_backends

    ec2 = ec2_backends[DEFAULT_ACCOUNT_ID][REGION]
    for id, reservation in list(ec2.reservations.items()):
        if all(instance._state.name == "terminated" for instance in reservation.instances):
            del ec2.reservations[id]
    for id, endpoint in list(ec2.vpc_end_points.items()):
        if endpoint.state == "deleted":
            del ec2.vpc_end_points[id]
    living = {id for value in vars(ec2).values() if isinstance(value, dict) for id in value}
    for id in [id for id in ec2.tags if id not in living]:
        del ec2.tags[id]
    cloudformation_backends[DEFAULT_ACCOUNT_ID][REGION].deleted_stacks.clear()


# -- what befalls the calls ----------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone: nothing of it runs any more, no clean-up either."""


@dataclass(frozen=True)
class Fault:
    """What befalls one call, or that one and all after it."""

    name: str
    code: str = ""
    """AWS's answer; "" for none at all."""
    status: int = 400
    """With 200 the answer is no error, and there is nothing in it."""
    executed: bool = False
    """Whether AWS did what it was asked before the answer was lost."""
    lasting: bool = False
    signal: int = 0
    """What the process gets while it makes the call, which comes to pass."""


THROTTLED = Fault("throttled", "Throttling", 503)
DENIED = Fault("denied", "AccessDenied", 403)
NO_CAPACITY = Fault("no capacity", "InsufficientInstanceCapacity", 500)
TIMED_OUT = Fault("timed out")
LOST_ANSWER = Fault("answer lost", executed=True)
EXPIRED = Fault("credentials expired", "ExpiredToken", 400, lasting=True)
KILLED = Fault("killed before", lasting=True)
KILLED_AFTER = Fault("killed after", executed=True, lasting=True)
EMPTY = Fault("answered nothing", "None", 200)
CTRL_C = Fault("interrupted", signal=signal.SIGINT)
FAULTS = (
    KILLED_AFTER,
    LOST_ANSWER,
    THROTTLED,
    DENIED,
    KILLED,
    NO_CAPACITY,
    TIMED_OUT,
    EXPIRED,
)


class Laptop:
    """boto3 as one process has it. Its calls are counted from 1 for every `trial`."""

    def __init__(self) -> None:
        from spotelastic.aws.base.clients import Aws

        self.aws = Aws(REGION)
        self.calls: list[str] = []
        self._fault: Fault | None = None
        self._at = 0
        self._of = ""
        self._number = 0
        events = self.aws.session.events
        events.register("before-call", self._before)
        events.register("after-call", self._after)

    @contextmanager
    def trial(self, fault: Fault | None = None, at: int = 0, of: str = "") -> Iterator[None]:
        """The fault strikes at the `at`-th call, or at the `at`-th one of that name."""
        self.calls, self._fault, self._at, self._of, self._number = [], fault, at, of, 0
        vars(self.aws).pop("account", None)  # a new process asks again
        try:
            yield
        finally:
            self._fault = None

    def _before(self, model: Any, **_: Any) -> Any:
        self.calls.append(f"{model.service_model.service_name}.{model.name}")
        self._number += self._of in ("", self.calls[-1])
        fault = self._fault
        if fault is None or not self._strikes(fault) or (fault.executed and not self._past(fault)):
            return None
        if fault.signal:
            os.kill(os.getpid(), fault.signal)
            return None
        if fault.code:
            silent = model.http["method"] == "HEAD"  # which has no body to tell a code in
            code = str(fault.status) if silent else fault.code
            if fault.status == 200:
                return SimpleNamespace(status_code=200), {
                    "ResponseMetadata": {"HTTPStatusCode": 200}
                }
            error = {"Code": code, "Message": fault.name}
            answer = {"Error": error, "ResponseMetadata": {"HTTPStatusCode": fault.status}}
            return SimpleNamespace(status_code=fault.status), answer
        raise self._silence(fault)

    def _after(self, **_: Any) -> None:
        fault = self._fault
        if fault is not None and fault.executed and self._number == self._at:
            raise self._silence(fault)

    def _strikes(self, fault: Fault) -> bool:
        return self._number == self._at or (fault.lasting and self._number > self._at)

    def _past(self, fault: Fault) -> bool:
        return fault.lasting and self._number > self._at

    def _silence(self, fault: Fault) -> BaseException:
        if fault.lasting:
            return Killed()
        return ReadTimeoutError(endpoint_url="https://aws")
