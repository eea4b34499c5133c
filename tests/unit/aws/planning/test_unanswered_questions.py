"""What AWS need not answer for a cluster to work stops no `up`: it is not known, and told so."""

from collections.abc import Iterator

import pytest
from support.aws.account import REGION, account
from support.aws.cluster_requests import job
from support.aws.refused_calls import refuse

from spotelastic.aws.base.clients import Aws, SignedOut
from spotelastic.aws.planning.survey import survey

QUESTIONS = {
    "ec2": (
        "DescribeCapacityReservations",
        "DescribeVpcBlockPublicAccessOptions",
        "GetEbsDefaultKmsKeyId",
        "GetSpotPlacementScores",
    ),
    "events": ("ListRules",),
    "quotas": ("GetServiceQuota",),
    "s3": (
        "GetBucketEncryption",
        "GetBucketPolicy",
    ),
}
"""By the name of the client."""
ANSWERS = {
    "denied": ("AccessDeniedException", 400),
    "not in this region": ("UnsupportedOperation", 400),
    "out of reach": ("ServiceUnavailable", 503),
}


@pytest.fixture(scope="module", autouse=True)
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with account(tmp_path_factory.mktemp("account")):
        Aws(REGION).s3.create_bucket(Bucket="mine")
        yield


@pytest.mark.parametrize(
    ("answer", "types"),
    [*((each, ("c5.large",)) for each in ANSWERS), pytest.param("denied", (), id="denied-chosen")],
)
def test_a_question_without_an_answer_stops_nothing(answer: str, types: tuple[str, ...]) -> None:
    code, status = ANSWERS[answer]
    for service, calls in QUESTIONS.items():
        for call in calls:
            aws = Aws(REGION)
            asked = refuse(getattr(aws, service), call, code, status=status)
            found = survey(aws, job("demo", 4, instance_types=types), bucket="mine")
            assert asked and found.types and not found.obstacles, call
            told = [each for each in found.warnings if "quotas are not known" in each]
            assert len(told) == (call == "GetServiceQuota"), call


def test_credentials_that_have_ended_are_told_as_that() -> None:
    aws = Aws(REGION)
    refuse(aws.quotas, "GetServiceQuota", "ExpiredTokenException")
    with pytest.raises(SignedOut, match="log in again"):
        survey(aws, job("demo", 4))
