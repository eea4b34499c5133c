"""Looks at the key by which the account's new disks are encrypted."""

from collections.abc import Iterator

from spotelastic.aws.base.clients import DENIED, Aws, Rejected, calling
from spotelastic.aws.planning.encryption_key import PAGE

OF_AWS = "alias/aws/ebs"
"""The key that AWS manages, which every service of the account may use."""
ROLE = "AWSServiceRoleForAutoScaling"


def warnings(aws: Aws, given: str = "") -> Iterator[str]:
    """Yield what is to be known of a key of the account's own, or of the one that is given.

    Auto Scaling starts the instances, and may use such a key only where its policy says so.
    Otherwise each instance ends at its launch, with an internal error as the only reason.
    """
    if given:
        yield (
            f"disks and logs will be encrypted with {given}: its policy needs to let {ROLE} and "
            f"CloudWatch Logs use it ({PAGE} says how)"
        )
        return
    try:
        with calling("look up the key of new disks"):
            key = str(aws.ec2.get_ebs_default_kms_key_id()["KmsKeyId"])
    except Rejected as error:
        if error.code not in DENIED:
            raise
        return
    if not key.endswith(OF_AWS):
        yield (
            f"new disks are encrypted with {key}: unless its policy lets {ROLE} use it, every "
            f"instance ends at its launch ({PAGE} says how)"
        )
