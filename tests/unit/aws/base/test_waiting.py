"""Waiting for what takes AWS minutes, while it cannot answer for a moment."""

import pytest

from spotelastic.aws.base.clients import Busy, Rejected
from spotelastic.aws.base.waiting import until
from spotelastic.errors import Unavailable

BUSY = Busy("cannot look: AWS is busy", "RequestThrottled")


class Watched:
    """A clock that sleeping moves, and what each look answers; the last answer stays."""

    def __init__(self, *answers: object) -> None:
        self.now = 0.0
        self._answers = list(answers)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def look(self) -> object:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def wait(self) -> object:
        return until(self.look, "it is not there", 60.0, clock=lambda: self.now, sleep=self.sleep)


def test_a_look_that_is_not_answered_is_repeated() -> None:
    assert Watched(BUSY, None, BUSY, Unavailable("no network"), "there").wait() == "there"


def test_in_the_end_the_last_answer_is_told() -> None:
    with pytest.raises(Unavailable, match=r"^it is not there: not after 60 s$"):
        Watched(BUSY, None).wait()
    with pytest.raises(Unavailable, match=r"it is not there: not after 60 s \(cannot look: AWS"):
        Watched(None, BUSY).wait()


@pytest.mark.parametrize("error", [Rejected("not permitted", "AccessDenied"), ValueError("no")])
def test_what_waiting_does_not_mend_is_raised_at_once(error: Exception) -> None:
    watched = Watched(error)
    with pytest.raises(type(error)):
        watched.wait()
    assert watched.now == 0.0
