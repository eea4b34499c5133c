"""The roles of AWS's own services: made where the account has none, by who may not look as well."""

from collections.abc import Iterator

import pytest
from moto import mock_aws
from support.aws.refused_calls import refuse

from spotelastic.aws.base.clients import Aws, Rejected
from spotelastic.aws.planning.dry_run import SERVICE_ROLES, ensure_service_roles


@pytest.fixture
def aws() -> Iterator[Aws]:
    with mock_aws():
        yield Aws("us-east-1")


@pytest.mark.parametrize("code", ["InvalidInput", "AccessDenied"])
def test_who_may_not_look_goes_on_where_they_are_there_or_another_has_to_make_them(
    aws: Aws, code: str
) -> None:
    refuse(aws.iam, "GetRole", "AccessDenied", status=403)
    asked = refuse(aws.iam, "CreateServiceLinkedRole", code)
    ensure_service_roles(aws)
    assert len(asked) == len(SERVICE_ROLES)


@pytest.mark.parametrize(
    ("look", "make"),
    [
        ("NoSuchEntity", "AccessDenied"),
        ("AccessDenied", "LimitExceeded"),
        ("ServiceFailure", "InvalidInput"),
    ],
)
def test_what_else_is_refused_is_told(aws: Aws, look: str, make: str) -> None:
    refuse(aws.iam, "GetRole", look)
    refuse(aws.iam, "CreateServiceLinkedRole", make)
    with pytest.raises(Rejected):
        ensure_service_roles(aws)
