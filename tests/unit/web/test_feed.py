"""A cluster that pages look at: what they are shown when it cannot be seen."""

from dataclasses import replace

from support.clusters.published_cluster import BEGAN, NEW, PUBLISHED, STATUS

from spotelastic.client.targets.cloud_target import CloudEnded
from spotelastic.errors import Unavailable
from spotelastic.model.progress import Point
from spotelastic.web.server.feed import EVERY, ClusterFeed
from spotelastic.web.view.published import PublishedCluster


class Answers:
    """Gives one answer after the other, the last one for ever; counts how often it is asked."""

    def __init__(self, *answers: PublishedCluster | Exception) -> None:
        self.answers = list(answers)
        self.asked = 0
        self.clock = 100.0

    def read(self) -> PublishedCluster:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def feed(self) -> ClusterFeed:
        return ClusterFeed(self.read, lambda: self.clock, lambda: BEGAN + self.clock)


def test_pages_that_look_in_one_second_share_a_look() -> None:
    answers = Answers(NEW, PUBLISHED)
    feed = answers.feed()
    first = feed.look()
    answers.clock += EVERY / 2
    assert feed.look() is first
    answers.clock += EVERY / 2
    assert feed.look().sections["head"] != first.sections["head"]
    assert answers.asked == 2


def test_the_curve_is_drawn_again_only_if_it_was_read_again() -> None:
    later = replace(PUBLISHED, status=replace(STATUS, step=121))
    more = replace(later, points=(*PUBLISHED.points, Point(121, 0.5, BEGAN + 90)))
    answers = Answers(PUBLISHED, later, more)
    feed = answers.feed()
    charts, heads = [], []
    for _ in range(3):
        look = feed.look()
        charts.append(look.sections["chart"])
        heads.append(look.sections["figures"])
        answers.clock += EVERY
    assert charts[0] == charts[1] != charts[2]
    assert heads[0] != heads[1]


def test_what_was_seen_last_stays_with_the_reason_and_since_when() -> None:
    gone = Unavailable("cannot read s3://bucket/demo/status.json: no route to host")
    answers = Answers(PUBLISHED, gone, gone, PUBLISHED)
    feed = answers.feed()
    first = feed.look()
    assert first.trouble == ""
    for seconds in (0, 12):
        answers.clock += EVERY + seconds
        told = feed.look()
        assert told.sections == first.sections
        since = " for 13 s" if seconds else ""
        assert told.trouble == f"Cannot see the cluster{since}: {gone}"
    answers.clock += EVERY
    assert feed.look().trouble == ""


def test_a_cloud_that_has_ended_is_told_as_it_is() -> None:
    answers = Answers(PUBLISHED, CloudEnded("the local cloud has ended, and its clusters with it"))
    feed = answers.feed()
    first = feed.look()
    answers.clock += EVERY
    told = feed.look()
    assert told.trouble == "the local cloud has ended, and its clusters with it"
    assert told.sections == first.sections


def test_an_error_that_nobody_thought_of_does_not_end_the_page() -> None:
    answers = Answers(KeyError("<b>step</b>"))
    told = answers.feed().look()
    assert told.trouble == "Cannot see the cluster: KeyError: '<b>step</b>'"
    assert told.sections == {}


def test_the_controls_know_what_can_be_done() -> None:
    assert Answers(PUBLISHED).feed().look().facts == {
        "title": "demo: running – spotelastic",
        "tone": "good",
        "ended": False,
        "gone": False,
        "nodes": ("i-3",),
        "ranks": (0, 1),
        "sizes": (1, 2),
    }
    over = replace(PUBLISHED, status=replace(STATUS, state="stopped", nodes=()), is_gone=True)
    told = Answers(over).feed().look().facts
    assert (told["ended"], told["gone"], told["nodes"]) == (True, True, ())
