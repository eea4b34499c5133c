"""Tags of the user's own, and the boundary of roles: what is refused before AWS would refuse it."""

import pytest

from spotelastic.aws.base.demands import MOST, boundary, own_of, read_tags
from spotelastic.errors import UsageError


def test_tags_are_read_up_to_the_first_sign() -> None:
    assert read_tags(["Team=vision", "cost:center=a=b", "Owner=Zoë Müller @4"]) == {
        "Team": "vision",
        "cost:center": "a=b",
        "Owner": "Zoë Müller @4",
    }


@pytest.mark.parametrize(
    ("tag", "why"),
    [
        ("Team", "expected KEY=VALUE"),
        ("=vision", "a key has 1 to 128"),
        ("aws:team=vision", "keys that begin with aws:"),
        ("AWS:team=vision", "keys that begin with AWS:"),
        ("spotelastic:cluster=other", "keys that begin with spotelastic:"),
        ("Name=mine", "names its nodes by this tag"),
        ("Cost Center=1", "cannot be shown to the node"),
        ("a/b=1", "cannot be shown to the node"),
        ("_index=1", "cannot be shown to the node"),
        ("..=1", "cannot be shown to the node"),
        ("Größe=1", "cannot be shown to the node"),
        ("K" * 129 + "=1", "a key has 1 to 128"),
        ("Team=", "a value has 1 to 256"),
        ("Team=" + "v" * 257, "a value has 1 to 256"),
        ("Team=a;b", "a value has letters"),
        ("Team=a\nb", "a value has letters"),
        ("Team=${AWS::AccountId}", "a value has letters"),
    ],
)
def test_a_tag_that_some_service_refuses_is_refused_before(tag: str, why: str) -> None:
    with pytest.raises(UsageError, match=r"--tag .*") as told:
        read_tags([tag])
    assert why in str(told.value)


@pytest.mark.parametrize("second", ["Team=other", "Team=vision", "TEAM=vision"])
def test_a_key_is_given_once(second: str) -> None:
    with pytest.raises(UsageError, match="this key is given twice"):
        read_tags(["Team=vision", second])


def test_there_is_room_for_spotelastics_own_tags() -> None:
    many = [f"key-{number}=1" for number in range(MOST)]
    assert len(read_tags(many)) == MOST
    with pytest.raises(UsageError, match=f"--tag: {MOST + 1} are given, and at most {MOST} fit"):
        read_tags([*many, "one=more"])


def test_of_a_resources_tags_the_users_are_those_of_nobody_else() -> None:
    its = {"Team": "vision", "Name": "n", "aws:created": "x", "spotelastic:cluster": "quokka"}
    assert own_of(its) == {"Team": "vision"}


@pytest.mark.parametrize(
    "arn",
    [
        "arn:aws:iam::123456789012:policy/boundary",
        "arn:aws-us-gov:iam::123456789012:policy/teams/ml/boundary",
        "arn:aws-cn:iam::aws:policy/PowerUserAccess",
    ],
)
def test_a_boundary_is_a_policy_of_any_partition(arn: str) -> None:
    assert boundary(arn) == arn


@pytest.mark.parametrize(
    "text", ["boundary", "arn:aws:iam::123456789012:role/boundary", "arn:aws:iam::1:policy/b"]
)
def test_what_is_no_policy_is_no_boundary(text: str) -> None:
    with pytest.raises(UsageError, match=r"--permissions-boundary .*: expected the ARN"):
        boundary(text)
    assert boundary(None) == ""
