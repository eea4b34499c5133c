"""Which refusals pass by themselves: those that botocore sends again, and others."""

from typing import Any

import pytest
from botocore.exceptions import ClientError

from spotelastic.aws.base.clients import Busy, Rejected, calling


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
    with pytest.raises(Busy, match=r"cannot look: AWS is busy.*its text"), calling("look"):
        raise error


@pytest.mark.parametrize("code", ["LimitExceededException", "ValidationError", "VpcLimitExceeded"])
def test_what_stays_is_a_refusal(code: str) -> None:
    with pytest.raises(Rejected, match="its text"), calling("look"):
        raise answered(code)
