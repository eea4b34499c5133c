"""What an instance has printed: the newest where AWS has it, else what it took down by itself."""

from typing import Any

import pytest
from support.aws.fake_services import fake_aws, refusal

from spotelastic.aws.base.clients import Rejected
from spotelastic.aws.compute import autoscaling


class OneInstance:
    """EC2 with one instance. An answer is what it has printed, or the code of an error."""

    def __init__(self, newest: str, taken_down: str) -> None:
        self._answers = {True: newest, False: taken_down}
        self.asked = 0

    def get_console_output(self, InstanceId: str, Latest: bool = False) -> dict[str, Any]:
        self.asked += 1
        answer = self._answers[Latest]
        if answer[:1].isupper():
            raise refusal(answer, "GetConsoleOutput")
        return {"Output": answer} if answer else {}


def console(ec2: OneInstance) -> str:
    return autoscaling.console(fake_aws(ec2=ec2), "i-1")


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
    ec2 = OneInstance(newest, taken_down)
    assert console(ec2) == told
    assert ec2.asked == (1 if newest == told == "now" else 2)


def test_without_either_the_first_reason_is_told() -> None:
    with pytest.raises(Rejected, match="IncorrectInstanceState"):
        console(OneInstance("IncorrectInstanceState", "InvalidInstanceID.NotFound"))


def test_who_may_not_read_it_is_not_asked_twice() -> None:
    ec2 = OneInstance("UnauthorizedOperation", "then")
    with pytest.raises(Rejected, match="not permitted"):
        console(ec2)
    assert ec2.asked == 1
