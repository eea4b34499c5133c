"""What an instance has printed: the newest where AWS has it, else what it took down by itself."""

from typing import Any, cast

import pytest
from botocore.exceptions import ClientError

from spotelastic.aws.base.clients import Aws, Rejected
from spotelastic.aws.compute import autoscaling


class Account:
    """Of one instance. An answer is what it has printed, or the code of an error."""

    def __init__(self, newest: str, taken_down: str) -> None:
        self.ec2 = self
        self._answers = {True: newest, False: taken_down}
        self.asked = 0

    def get_console_output(self, InstanceId: str, Latest: bool = False) -> dict[str, Any]:
        self.asked += 1
        answer = self._answers[Latest]
        if answer[:1].isupper():
            raise ClientError({"Error": {"Code": answer, "Message": "no"}}, "GetConsoleOutput")
        return {"Output": answer} if answer else {}


def console(account: Account) -> str:
    return autoscaling.console(cast(Aws, account), "i-1")


@pytest.mark.parametrize(
    ("newest", "taken_down", "told"),
    [
        ("now", "then", "now"),
        ("", "then", "then"),
        ("UnsupportedOperation", "then", "then"),
        ("IncorrectInstanceState", "then", "then"),
        ("", "", ""),
        ("IncorrectInstanceState", "", ""),  # nothing yet
    ],
)
def test_what_was_taken_down_stands_in_for_the_newest(
    newest: str, taken_down: str, told: str
) -> None:
    account = Account(newest, taken_down)
    assert console(account) == told
    assert account.asked == (1 if newest == told == "now" else 2)


def test_without_either_the_first_reason_is_told() -> None:
    with pytest.raises(Rejected, match="IncorrectInstanceState"):
        console(Account("IncorrectInstanceState", "InvalidInstanceID.NotFound"))


def test_who_may_not_read_it_is_not_asked_twice() -> None:
    account = Account("UnauthorizedOperation", "then")
    with pytest.raises(Rejected, match="not permitted"):
        console(account)
    assert account.asked == 1
