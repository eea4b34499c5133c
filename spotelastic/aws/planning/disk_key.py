"""Looks at the key by which the account's new disks are encrypted."""

from collections.abc import Iterator
from contextlib import suppress

from spotelastic.aws.base.clients import DENIED, Aws, Rejected, calling, listed, passing
from spotelastic.aws.planning.encryption_key import PAGE

OF_AWS = "alias/aws/ebs"
"""The key that AWS manages, which every service of the account may use."""
ROLE = "AWSServiceRoleForAutoScaling"


def warnings(given: str) -> Iterator[str]:
    """Yield what is to be known of the key that is given (pure)."""
    if given:
        yield (
            f"disks and logs will be encrypted with {given}: its policy needs to let {ROLE} and "
            f"CloudWatch Logs use it ({PAGE} says how)"
        )


def look(aws: Aws) -> tuple[str, str]:
    """Return what is to be known of the account's own key of new disks, and why none would start.

    Either is empty if there is nothing to say.

    It starts the instances, and may use such a key only where the key's policy or a grant names its
    role. Otherwise each instance ends at its launch, with an internal error as the only reason.
    """
    key = OF_AWS
    with passing(*DENIED), calling("look up the key of new disks"):
        key = str(aws.ec2.get_ebs_default_kms_key_id()["KmsKeyId"])
    if key.endswith(OF_AWS):
        return "", ""
    told = _permissions(aws, key)
    if told is None:
        return (
            f"new disks are encrypted with {key}: unless its policy lets {ROLE} use it, every "
            f"instance ends at its launch ({PAGE} says how)"
        ), ""
    if ROLE in told:
        return "", ""
    return "", (
        f"new disks are encrypted with {key}, whose policy and grants do not name {ROLE}: "
        f"every instance would end at its launch ({PAGE} says how to let it)"
    )


def _permissions(aws: Aws, key: str) -> str | None:
    """Return the key's policy and grants; None where AWS does not tell."""
    with suppress(Rejected):
        with calling("look at the policy of the key of new disks"):
            told = str(aws.kms.get_key_policy(KeyId=key, PolicyName="default")["Policy"])
        with calling("look at the grants of the key of new disks"):
            return told + " ".join(map(str, listed(aws.kms, "list_grants", "Grants", KeyId=key)))
    return None
