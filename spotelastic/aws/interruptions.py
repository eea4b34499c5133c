"""Spot interruptions on request, by AWS's Fault Injection Service: what AWS itself would do.

An experiment's template is deleted as soon as the experiment runs; what remains is the role.
"""

import time
import uuid
from collections.abc import Callable

from spotelastic.aws import account
from spotelastic.aws.clients import Aws, Rejected, calling
from spotelastic.clock import Clock, steady

WARNING = 120.0
"""Seconds of notice that AWS gives, always."""
LONGEST = 900.0
"""Seconds from the recommendation to the end of an instance at most."""


KNOWN_WITHIN = 30.0
"""Seconds until a role that was just made is known everywhere in AWS."""
ASK_EVERY = 2.0

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
        while not _began(aws, instance, template, patient=clock() < patient_until):
            sleep(ASK_EVERY)
    finally:
        with calling(f"delete the template of the interruption of {instance}"):
            aws.fis.delete_experiment_template(id=template)


def _began(aws: Aws, instance: str, template: str, *, patient: bool) -> bool:
    """False where the service cannot take the role (yet), and who asks is `patient` about it."""
    try:
        with calling(f"interrupt {instance}"):
            aws.fis.start_experiment(clientToken=uuid.uuid4().hex, experimentTemplateId=template)
    except Rejected as error:
        if not patient or "role" not in str(error).lower():
            raise
        return False
    return True
