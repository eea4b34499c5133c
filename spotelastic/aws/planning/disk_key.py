"""Looks at the key by which new disks are encrypted: the account's own, or that of `--kms-key`.

Auto Scaling starts the instances, and may use a key of the account's own only where the key's
policy or a grant names its role. Otherwise each instance ends at its launch, with an internal error
as the only reason.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any

from spotelastic.aws.base.clients import Aws, calling, listed, optional
from spotelastic.aws.planning.encryption_key import PAGE, find_key, several, unfit

OF_AWS = "alias/aws/ebs"
"""The key that AWS manages, which every service of the account may use."""
ROLE = "AWSServiceRoleForAutoScaling"
NEEDED = ("kms:CreateGrant", "kms:Decrypt", "kms:GenerateDataKeyWithoutPlaintext")
"""What it does with a key, so that EC2 can make disks and read them."""


def look(aws: Aws, given: str = "") -> tuple[str, str]:
    """Return what is to be known of the key, and why no instance would start with it.

    Either is empty if there is nothing to say. `given` is the key of the user's own.
    """
    key = find_key(aws, given) if given else OF_AWS
    if not given:
        with optional(), calling("look up the key of new disks"):
            key = str(aws.ec2.get_ebs_default_kms_key_id()["KmsKeyId"])
        if key.endswith(OF_AWS):
            return "", ""
    what = (
        f"disks and logs will be encrypted with {key}"
        if given
        else f"new disks are encrypted with {key}"
    )
    found: Mapping[str, Any] = {}
    with optional(), calling("look at the key of new disks"):
        found = aws.kms.describe_key(KeyId=key)["KeyMetadata"]
    if found.get("KeyManager") == "AWS" and not given:
        return "", ""
    if wrong := unfit(found):
        return "", f"{what}: {wrong}"
    logs = " and CloudWatch Logs use it" if given else " use it"
    lacks = _lacks(aws, str(found.get("Arn", key)))
    if lacks is None:
        unless = f"unless its policy lets {ROLE}{logs}, every instance ends at its launch"
        return f"{what}: {unless} ({PAGE} says how)", ""
    if not lacks:
        return "", ""
    return "", (
        f"{what}, whose policy and grants do not permit {ROLE} {', '.join(lacks)}: every instance "
        f"would end at its launch ({PAGE} says how to permit it)"
    )


def _lacks(aws: Aws, key: str) -> list[str] | None:
    """Return what the key's policy and grants do not permit; None where AWS does not tell."""
    with optional(), suppress(ValueError):
        with calling("look at the policy of the key of new disks"):
            told = aws.kms.get_key_policy(KeyId=key, PolicyName="default")["Policy"]
        with calling("look at the grants of the key of new disks"):
            grants = [*listed(aws.kms, "list_grants", "Grants", KeyId=key)]
        if any(_is_role(str(each.get("GranteePrincipal"))) for each in grants):
            return []
        statements = several(json.loads(told).get("Statement", ()))
        return [each for each in NEEDED if not permits(statements, each)]
    return None


def permits(statements: list[Mapping[str, Any]], action: str) -> bool:
    """Return whether a key's policy lets the role do something (pure).

    A statement about everybody counts, as in the policies of AWS's own keys, which let everybody
    who comes through EC2; not so where it is about principals of other names.
    """
    its = [each for each in statements if _is_about(each, action)]
    denied = any(each["Effect"] == "Deny" and not each.get("Condition") for each in its)
    return not denied and any(each["Effect"] == "Allow" for each in its)


def _is_about(statement: Mapping[str, Any], action: str) -> bool:
    actions = (str(each).lower() for each in several(statement.get("Action", ())))
    if not any(fnmatchcase(action.lower(), each) for each in actions):
        return False
    named = statement.get("Principal", ())
    named = named.get("AWS", ()) if isinstance(named, Mapping) else named
    others = json.dumps(statement.get("Condition", {}))
    everybody = "*" in several(named) and ("PrincipalArn" not in others or ROLE in others)
    return everybody or any(map(_is_role, map(str, several(named))))


def _is_role(principal: str) -> bool:
    """Return whether it is the role, and not one of the same service with a suffix."""
    return principal.rpartition("/")[2] == ROLE
