"""Spot interruptions on request, by AWS's Fault Injection Service: what AWS itself would do.

An experiment's template is deleted as soon as the experiment runs; what remains is the role.
"""

import uuid

from spotelastic.aws import account
from spotelastic.aws.clients import Aws, calling

WARNING = 120.0
"""Seconds of notice that AWS gives, always."""
LONGEST = 900.0
"""Seconds from the recommendation to the end of an instance at most."""


def interrupt(aws: Aws, instance: str, seconds: float) -> None:
    """Recommends to leave the spot instance now, gives it notice `WARNING` seconds before its end,
    and ends it after `seconds` (`WARNING` to `LONGEST`)."""
    role = account.ensure_fault_role(aws)
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
        with calling(f"interrupt {instance}"):
            aws.fis.start_experiment(clientToken=uuid.uuid4().hex, experimentTemplateId=template)
    finally:
        with calling(f"delete the template of the interruption of {instance}"):
            aws.fis.delete_experiment_template(id=template)
