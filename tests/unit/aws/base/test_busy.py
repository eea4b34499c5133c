"""Which refusals pass by themselves: those that botocore sends again, and others. What is told of
an answer that lacks something, and of a denial.
"""

from typing import Any

import pytest
from botocore.exceptions import ClientError

from spotelastic.aws.base.clients import Busy, Rejected, calling
from spotelastic.errors import Unavailable


def answered(code: str, status: int = 400) -> ClientError:
    answer: Any = {
        "Error": {"Code": code, "Message": "its text"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(answer, "Look")


@pytest.mark.parametrize(
    "error",
    [
        *map(
            answered,
            (
                "Throttling",
                "ThrottlingException",
                "ThrottledException",
                "RequestThrottled",
                "RequestThrottledException",
                "RequestLimitExceeded",
                "EC2ThrottledException",
                "PriorRequestNotComplete",
                "RequestTimeout",
                "RequestTimeoutException",
                "TooManyRequestsException",
                "SlowDown",
                "ServiceUnavailable",
                "InternalError",
            ),
        ),
        answered("Whatever", 503),
        answered("Whatever", 429),
    ],
    ids=str,
)
def test_what_passes_is_busy_with_the_words_of_aws(error: ClientError) -> None:
    with pytest.raises(Busy, match=r"cannot look: AWS is busy.*its text.*: try"), calling("look"):
        raise error


@pytest.mark.parametrize("code", ["LimitExceededException", "ValidationError", "VpcLimitExceeded"])
def test_what_stays_is_a_refusal(code: str) -> None:
    with pytest.raises(Rejected, match="its text"), calling("look"):
        raise answered(code)


def test_an_answer_that_lacks_something_is_none() -> None:
    answer: dict[str, Any] = {"ResponseMetadata": {"HTTPStatusCode": 200}}
    lacks = "cannot look: the answer lacks 'Stacks'"
    with pytest.raises(Unavailable, match=lacks), calling("look"):
        assert answer["Stacks"]


@pytest.mark.parametrize(
    ("why", "advice"),
    [
        ("with an explicit deny in a service control policy", "a policy of your organization"),
        ("because no permissions boundary allows it", "the permissions boundary"),
        ("because no identity-based policy allows it", "see docs/reference/permissions.md"),
    ],
)
def test_a_denial_says_what_to_do(why: str, advice: str) -> None:
    denied = answered("AccessDenied", 403)
    denied.response["Error"]["Message"] = f"not authorized to perform: ec2:Look {why}"
    with pytest.raises(Rejected, match=f"cannot look: not permitted .*: {advice}"), calling("look"):
        raise denied
