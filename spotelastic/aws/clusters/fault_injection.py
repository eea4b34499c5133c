"""Spot interruptions on request, by AWS's Fault Injection Service: what AWS itself would do.

An experiment's template is deleted as soon as the experiment runs; what remains is the role.
"""

import re
import time
import uuid
from collections.abc import Callable
from typing import Any

from spotelastic.aws.base import account
from spotelastic.aws.base.clients import Aws, Rejected, calling
from spotelastic.clock import Clock, steady
from spotelastic.errors import Unavailable

WARNING = 120.0
"""Seconds of notice that AWS gives, always."""
LONGEST = 900.0
"""Seconds from the recommendation to the end of an instance at most."""

KNOWN_WITHIN = 30.0
"""Seconds until a role that was just made is known everywhere in AWS."""
BEGINS_WITHIN = 120.0
"""Seconds that the service may take over beginning."""
ASK_EVERY = 2.0
BEGINNING = frozenset({"pending", "initiating"})
BEGUN = frozenset({"running", "completed"})
OF_THE_ROLE = re.compile(r"\brole\b|authori[sz]|permission", re.I)
"""What is said of a role that cannot be taken (yet), or that cannot do anything yet."""

Sleep = Callable[[float], None]


def interrupt(
    aws: Aws, instance: str, seconds: float, *, clock: Clock = steady, sleep: Sleep = time.sleep
) -> None:
    """Recommends to leave the spot instance now, gives it notice `WARNING` seconds before its end,
    and ends it after `seconds` (`WARNING` to `LONGEST`)."""
    role, new = account.ensure_fault_role(aws)
    patient_until = clock() + (KNOWN_WITHIN if new else 0.0)
    arn = f"arn:{aws.partition}:ec2:{aws.region}:{aws.account}:instance/{instance}"
    with calling(f"prepare the interruption of {instance}"):
        template = aws.fis.create_experiment_template(
            clientToken=uuid.uuid4().hex,
            description=f"spotelastic interrupt {instance}",
            roleArn=role,
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
        _run(aws, instance, template, patient_until, clock, sleep)
    finally:
        with calling(f"delete the template of the interruption of {instance}"):
            aws.fis.delete_experiment_template(id=template)


def _run(
    aws: Aws, instance: str, template: str, patient_until: float, clock: Clock, sleep: Sleep
) -> None:
    """Begins again, until then, where the role is what is in the way."""
    while True:
        try:
            return _begin(aws, instance, template, clock, sleep)
        except Rejected as error:
            if clock() >= patient_until or not OF_THE_ROLE.search(str(error)):
                raise
        sleep(ASK_EVERY)


def _begin(aws: Aws, instance: str, template: str, clock: Clock, sleep: Sleep) -> None:
    """Waits until it has begun: only then the service has taken the role and found the instance."""
    with calling(f"interrupt {instance}"):
        experiment = aws.fis.start_experiment(
            clientToken=uuid.uuid4().hex, experimentTemplateId=template
        )["experiment"]["id"]
    deadline = clock() + BEGINS_WITHIN
    while (state := _state(aws, instance, experiment))["status"] in BEGINNING:
        if clock() >= deadline:
            raise Unavailable(
                f"the interruption of {instance} has not begun within {BEGINS_WITHIN:.0f} s: it "
                "may come yet"
            )
        sleep(ASK_EVERY)
    if state["status"] not in BEGUN:
        code = state.get("error", {}).get("code", state["status"])
        raise Rejected(f"cannot interrupt {instance}: {state.get('reason')} ({code})", code)


def _state(aws: Aws, instance: str, experiment: str) -> dict[str, Any]:
    with calling(f"look whether the interruption of {instance} has begun"):
        state: dict[str, Any] = aws.fis.get_experiment(id=experiment)["experiment"]["state"]
    return state
