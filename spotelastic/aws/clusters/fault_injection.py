"""Interrupts a spot instance on request, through AWS's Fault Injection Service.

An experiment template is deleted as soon as its experiment runs. Only the service's role stays.
"""

import re
import time
import uuid
from collections.abc import Callable
from typing import Any

from spotelastic.aws.base import account
from spotelastic.aws.base.clients import Aws, Rejected, calling, patient
from spotelastic.aws.base.partitions import check_fault_injection
from spotelastic.aws.base.waiting import until
from spotelastic.clock import Clock, steady
from spotelastic.model.job import NO_DEMANDS, AccountDemands

WARNING = 120.0
"""Seconds of notice that AWS always gives."""
LONGEST = 900.0
"""Most seconds from the rebalance recommendation to the end of the instance."""

BEGINS_WITHIN = 120.0
"""Seconds that the service may take to begin."""
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
    begin = patient(
        lambda error: new and bool(OF_THE_ROLE.search(str(error))), clock=clock, sleep=sleep
    )(_begin)
    try:
        begin(aws, instance, template, demands, clock, sleep)
    finally:
        with calling(f"delete the template of the interruption of {instance}"):
            aws.fis.delete_experiment_template(id=template)


def _begin(
    aws: Aws, instance: str, template: str, demands: AccountDemands, clock: Clock, sleep: Sleep
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

    def begun() -> dict[str, Any] | None:
        with calling(f"look whether the interruption of {instance} has begun"):
            state: dict[str, Any] = aws.fis.get_experiment(id=experiment)["experiment"]["state"]
        return None if state["status"] in BEGINNING else state

    late = f"the interruption of {instance} has not begun, but may still come"
    state = until(begun, late, BEGINS_WITHIN, clock=clock, sleep=sleep)
    if state["status"] not in BEGUN:
        code = state.get("error", {}).get("code", state["status"])
        raise Rejected(f"cannot interrupt {instance}: {state.get('reason')} ({code})", code)
