"""What an account demands of all that is made in it.

It may demand tags of the user's own (`--tag KEY=VALUE`) on everything, and a permissions boundary
on roles.

Tags have to pass at every service that has tags, so the narrowest limits hold.
"""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from spotelastic.errors import UsageError

NO_TAGS: Mapping[str, str] = MappingProxyType({})
MOST = 40
"""Most tags. AWS takes 50 on a resource, of which some are spotelastic's."""
LONGEST_VALUE = 256
RESERVED = ("aws:", "spotelastic:")
"""Beginnings of keys that are AWS's own, or by which spotelastic finds what is its own."""
_KEY = re.compile(r"[A-Za-z0-9_.:+@-]{1,128}")
"""Keys that an instance's metadata shows: nodes read there what they belong to."""
_POLICY = re.compile(r"arn:aws[a-z-]*:iam::(\d{12}|aws):policy/[\w+=,.@/-]{1,512}", re.ASCII)
_HIDDEN = frozenset({".", "..", "_index"})
"""Keys that the metadata has another meaning for."""
_SIGNS = frozenset(" _.:/=+-@")
"""What values have besides letters and digits, at the services that take least."""


def read_tags(pairs: Iterable[str]) -> dict[str, str]:
    """Return the tags of KEY=VALUE texts. Raises `UsageError` for what AWS would refuse."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if wrong := _wrong(key, sign, value, found):
            raise UsageError(f"--tag {pair}: {wrong}")
        found[key] = value
    if len(found) > MOST:
        raise UsageError(f"--tag: {len(found)} are given, and at most {MOST} fit: leave some out")
    return found


def _wrong(key: str, sign: str, value: str, others: Mapping[str, str]) -> str:
    """Return what is wrong with a tag beside the others; "" if nothing is."""
    wrongs = {
        "expected KEY=VALUE": not sign,
        f"keys that begin with {key.partition(':')[0]}: are taken, choose another key": (
            key.lower().startswith(RESERVED)
        ),
        "spotelastic names its nodes by this tag, choose another key": key.lower() == "name",
        "a key has 1 to 128 of a-z, A-Z, 0-9 and _.:+@- (others cannot be shown to the node that "
        "has the tag)": not _KEY.fullmatch(key) or key in _HIDDEN,
        "this key is given twice, and AWS takes capitals for the same in roles": (
            key.lower() in map(str.lower, others)
        ),
        f"a value has 1 to {LONGEST_VALUE} characters": not 1 <= len(value) <= LONGEST_VALUE,
        "a value has letters, digits, spaces and _.:/=+-@": (
            not all(each.isalnum() or each in _SIGNS for each in value)
        ),
    }
    return next((why for why, is_so in wrongs.items() if is_so), "")


def boundary(arn: str | None) -> str:
    """Return the ARN of a permissions boundary, "" for none. Raises `UsageError`."""
    if arn and not _POLICY.fullmatch(arn):
        raise UsageError(
            f"--permissions-boundary {arn}: expected the ARN of a policy, "
            "arn:aws:iam::ACCOUNT:policy/NAME"
        )
    return arn or ""


def pairs_of(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags as AWS's calls take them."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def own_of(tags: Mapping[str, str]) -> dict[str, str]:
    """Return those of a resource's tags that are neither AWS's nor spotelastic's."""
    return {
        key: value for key, value in tags.items() if not key.startswith(RESERVED) and key != "Name"
    }
