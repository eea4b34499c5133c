"""Interrupts a spot instance on request, through AWS's Fault Injection Service.

An experiment template is deleted as soon as its experiment runs. Only the service's role stays.
"""

import re
import time
import uuid
from collections.abc import Callable
from typing import Any

from spotelastic.aws.base import account
from spotelastic.aws.base.clients import Aws, Rejected, calling
from spotelastic.aws.base.partitions import check_fault_injection
from spotelastic.clock import Clock, steady
from spotelastic.errors import Unavailable
from spotelastic.model.job import AccountDemands

NO_DEMANDS = AccountDemands()
WARNING = 120.0
"""Seconds of notice that AWS always gives."""
LONGEST = 900.0
"""Most seconds from the rebalance recommendation to the end of the instance."""

KNOWN_WITHIN = 30.0
"""Seconds until a new role is known everywhere in AWS."""
BEGINS_WITHIN = 120.0
"""Seconds that the service may take to begin."""
ASK_EVERY = 2.0
BEGINNING = frozenset({"pending", "initiating"})
BEGUN = frozenset({"running", "completed"})
OF_THE_ROLE = re.compile(r"\brole\b|authori[sz]|permission", re.I)
"""Recognizes errors about a role that cannot be assumed, or has no permissions, yet."""

Sleep = Callable[[float], None]


def interrupt(
    aws: Aws,
    instance: str,
    seconds: float,
    demands: AccountDemands = NO_DEMANDS,
    *,
    clock: Clock = steady,
    sleep: Sleep = time.sleep,
) -> None:
    """Send the spot instance a rebalance recommendation now, and end it after `seconds`.

    It gets its notice `WARNING` seconds before the end. `seconds` is from `WARNING` to `LONGEST`.
    `demands` are those of what is made for it. Raises `UsageError` where AWS has no such service.
    """
    check_fault_injection(aws.region)
    role, new = account.ensure_fault_role(aws, demands)
    patient_until = clock() + (KNOWN_WITHIN if new else 0.0)
    arn = f"arn:{aws.partition}:ec2:{aws.region}:{aws.account}:instance/{instance}"
    with calling(f"prepare the interruption of {instance}"):
        template = aws.fis.create_experiment_template(
            clientToken=uuid.uuid4().hex,
            description=f"spotelastic interrupt {instance}",
            roleArn=role,
            tags=dict(demands.tags),
            stopConditions=[{"source": "none"}],
            targets={
                "node": {
                    "resourceType": "aws:ec2:spot-instance",
                    "resourceArns": [arn],
                    "selectionMode": "ALL",
                }
            },
            actions={
                "interrupt": {
                    "actionId": "aws:ec2:send-spot-instance-interruptions",
                    "parameters": {"durationBeforeInterruption": f"PT{round(seconds / 60)}M"},
                    "targets": {"SpotInstances": "node"},
                }
            },
        )["experimentTemplate"]["id"]
    try:
        _run(aws, instance, template, demands, patient_until, clock, sleep)
    finally:
        with calling(f"delete the template of the interruption of {instance}"):
            aws.fis.delete_experiment_template(id=template)


def _run(
    aws: Aws,
    instance: str,
    template: str,
    demands: AccountDemands,
    patient_until: float,
    clock: Clock,
    sleep: Sleep,
) -> None:
    """Begin the experiment; retry until `patient_until` if the role is the obstacle."""
    while True:
        try:
            return _begin(aws, instance, template, demands, clock, sleep)
        except Rejected as error:
            if clock() >= patient_until or not OF_THE_ROLE.search(str(error)):
                raise
        sleep(ASK_EVERY)


def _begin(
    aws: Aws,
    instance: str,
    template: str,
    demands: AccountDemands,
    clock: Clock,
    sleep: Sleep,
) -> None:
    """Start the experiment and wait until it runs.

    Only then is it certain that the instance was found.
    """
    with calling(f"interrupt {instance}"):
        experiment = aws.fis.start_experiment(
            clientToken=uuid.uuid4().hex,
            experimentTemplateId=template,
            tags=dict(demands.tags),
        )["experiment"]["id"]
    deadline = clock() + BEGINS_WITHIN
    while (state := _state(aws, instance, experiment))["status"] in BEGINNING:
        if clock() >= deadline:
            raise Unavailable(
                f"the interruption of {instance} has not begun within {BEGINS_WITHIN:.0f} s, but "
                "may still come"
            )
        sleep(ASK_EVERY)
    if state["status"] not in BEGUN:
        code = state.get("error", {}).get("code", state["status"])
        raise Rejected(f"cannot interrupt {instance}: {state.get('reason')} ({code})", code)


def _state(aws: Aws, instance: str, experiment: str) -> dict[str, Any]:
    with calling(f"look whether the interruption of {instance} has begun"):
        state: dict[str, Any] = aws.fis.get_experiment(id=experiment)["experiment"]["state"]
    return state
