"""What is told to people, when, and how often."""

import random
from dataclasses import replace

import msgspec
import pytest

from spotelastic.model.counting import HOUR
from spotelastic.model.in_place import Rehearsal
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import Capacity, Failure, Job
from spotelastic.model.progress import LEDGER, Event, Interruption
from spotelastic.model.round import Member, Round
from spotelastic.model.validity import Validity
from spotelastic.notifications.due import (
    PER_HOUR,
    NotificationFacts,
    due,
    record,
    told_before,
)
from spotelastic.notifications.notification import LONGEST, Notification

NOW = 1_000_000.0
ROUND = Round(1, "r", "started", (Member("i-a", "1", 0, "10.0.0.1", "a", 2),), "start", "")
IDLE = NotificationFacts("demo", nodes=2, least=2)
TRAINS = replace(IDLE, round=ROUND, trained=True)
TRACEBACK = "Traceback (most recent call last):\n" + "  in a frame\n" * 400 + "ValueError: no data"
FAILURE = Failure("f", "i-a", "r", 3, 1, NOW, 1, "ValueError: no data", TRACEBACK)


def told(facts: NotificationFacts, before: dict[str, float] | None = None) -> list[Notification]:
    return list(due(facts, before or {}, NOW))


def kinds(facts: NotificationFacts, before: dict[str, float] | None = None) -> list[str]:
    return [each.kind for each in told(facts, before)]


DIFFERS = Rehearsal(2, 3, "different", ("step 2 differs:", "the learning rate.", "So it is told"))


def test_a_step_that_differs_is_told_once_in_each_life_of_the_job() -> None:
    facts = replace(TRAINS, rehearsal=DIFFERS, job=Job("pending", NOW - 10))
    begun, differs = told(facts)
    assert (
        differs.kind == "differs"
        and differs.type == "failure"
        and "the learning rate" in differs.text
    )
    before = {begun.id: NOW, differs.id: NOW}
    assert kinds(replace(facts, rehearsal=replace(DIFFERS, step=900)), before) == []
    assert kinds(replace(facts, job=Job("pending", NOW)), before) == ["begun", "differs"]
    assert kinds(replace(facts, rehearsal=replace(DIFFERS, outcome="noise")), before) == []


def ended(state: str, **more: object) -> NotificationFacts:
    return replace(TRAINS, job=Job(state, NOW, **more))  # type: ignore[arg-type]


def test_a_cluster_that_boots_has_nothing_to_tell() -> None:
    assert kinds(IDLE) == []


def test_a_job_that_trains_has_begun_once_in_each_of_its_lives() -> None:
    (begun,) = told(TRAINS)
    assert begun.kind == "begun" and "2 workers" in begun.text
    assert kinds(TRAINS, {begun.id: NOW - 50}) == []
    again = replace(TRAINS, job=Job("pending", NOW - 10))
    (restarted,) = told(again, {begun.id: NOW - 50})
    assert restarted.id != begun.id
    assert kinds(again, {restarted.id: NOW, begun.id: NOW}) == []


@pytest.mark.parametrize(
    ("state", "title", "todo", "kind"),
    [
        ("succeeded", "demo has succeeded", "spotelastic report demo", "success"),
        ("failed", "demo has failed", "spotelastic logs demo", "failure"),
        ("timed out", "demo has timed out", "spotelastic restart demo", "warning"),
        ("stopped", "demo was stopped", "spotelastic restart demo", "info"),
    ],
)
def test_an_end_is_told_with_what_to_do(state: str, title: str, todo: str, kind: str) -> None:
    (found,) = told(
        replace(ended(state, reason="why"), step=200, total=900, spent=3.1, linger=600.0)
    )
    assert (found.kind, found.title, found.type) == ("ended", title, kind)
    assert "It has cost $3.10 so far." in found.text
    assert ("ends by itself 10 min after its job" in found.text) is (state != "succeeded")
    assert "at step 200 of 900." in found.text and "why" in found.text and todo in found.text


def test_a_job_that_ended_before_its_first_step_is_told_so() -> None:
    (found,) = told(ended("failed"))
    assert "failed, before its first step." in found.text and "step 0" not in found.text


def test_one_of_a_kind_is_no_several() -> None:
    one = replace(ROUND, members=(replace(ROUND.members[0], workers=1),))
    (begun,) = told(replace(TRAINS, round=one))
    assert "with 1 worker on 1 node." in begun.text


def test_an_error_whose_traceback_is_one_line_is_told_once() -> None:
    error = "UsageError: call init_process_group first"
    failure = replace(FAILURE, message=error, traceback=error)
    (found,) = told(ended("failed", reason=f"{error}: it would fail again", failure=failure))
    assert found.text.count(error) == 1
    assert "from the last checkpoint, if there is one." in found.text


def test_a_large_number_is_told_with_separators_and_one_minute_as_one() -> None:
    facts = replace(
        IDLE, spent=120_003.0, per_hour=240_000.0, capacity=Capacity(max_cost=124_003.0)
    )
    (budget,) = told(facts)
    assert "$120,003 of the $124,003" in budget.text and "which lasts 1 minute. " in budget.text
    (end,) = told(replace(ended("failed"), step=85_213, total=1_500_000))
    assert "at step 85,213 of 1,500,000." in end.text


def test_a_failure_has_the_end_of_the_first_traceback_and_fits() -> None:
    (found,) = told(ended("failed", failure=FAILURE))
    assert "rank 3 on i-a" in found.text
    assert "ValueError: no data" in found.text
    assert "spotelastic logs demo" in found.text, "what to do is not cut off"
    assert len(found.text) <= LONGEST


def test_keys_of_well_known_services_are_not_passed_on() -> None:
    key = "hf_" + "a" * 30
    (found,) = told(ended("failed", failure=replace(FAILURE, traceback=f"401 with {key}")))
    assert key not in found.text and "401 with ***" in found.text


def test_nothing_else_is_told_of_a_job_that_has_ended() -> None:
    facts = replace(
        ended("failed"), short_since=0.0, spent=9.0, capacity=Capacity(max_cost=9.0, deadline=NOW)
    )
    assert kinds(facts) == ["ended"]


# -- the digest ----------------------------------------------------------------------------------

DAY = 24 * HOUR
AT = NOW // DAY * DAY + 6.5 * HOUR
"""When it is 06:30 UTC on that day."""
DAILY = replace(TRAINS, digest="06:30", step=12_000, total=50_000, pace=1.0, spent=41.2)


def row(at: float, round_: int, pause: float = 1.0, usd: float | None = None) -> Event:
    """An interruption that was recorded at `at`, after which training went on in this round."""
    kind = InterruptionKind.SPOT_INTERRUPTION
    its = Interruption(kind, "i-a", at - 60.0, 0.1, 9, True, pause, 0, usd=usd, round=round_)
    return Event(at, LEDGER, "", data={"interruption": msgspec.to_builtins(its)})


def digests(facts: NotificationFacts, now: float) -> list[Notification]:
    return [each for each in due(facts, {}, now) if each.kind == "digest"]


def test_a_digest_tells_of_the_day_before_it() -> None:
    pauses = [
        row(AT - HOUR, 7, 50.0, 1.05),
        row(AT - HOUR, 7, 50.0),
        row(AT - DAY + 1, 6, 60.0, 2.05),
    ]
    (found,) = digests(replace(DAILY, ledger=pauses), AT + 5.0)
    assert found.title == "demo: 3 interruptions, step 12,000 of 50,000"
    assert "3 interruptions since yesterday 06:30 UTC: 1 min 50 s of pauses, $3.10." in found.text
    assert "about 10 h 33 min left. It has cost $41.20 so far" in found.text
    (quiet,) = digests(replace(DAILY, total=0), AT)
    assert quiet.title == "demo: 0 interruptions, step 12,000" and "left" not in quiet.text


def test_each_interruption_is_in_one_digest() -> None:
    """Whenever it was recorded, and whenever in its hour the leader gets to send each digest."""
    drawn = random.Random(7)
    recorded = sorted(AT + drawn.choice((0.0, drawn.uniform(0.0, 3 * DAY))) for _ in range(200))
    counted = 0
    for day in range(5):
        now = AT + day * DAY + drawn.uniform(0.0, HOUR - 1.0)
        known = [row(at, 5) for at in recorded if at <= now]
        (found,) = digests(replace(DAILY, ledger=known), now)
        counted += int(found.text.partition(" ")[0])
    assert counted == len(recorded)


def test_a_digest_comes_once_a_day_within_its_hour_and_only_if_asked_for() -> None:
    sent: dict[str, float] = {}
    for minute in range(0, 3 * 24 * 60, 7):
        now = AT + minute * 60.0
        for each in due(DAILY, sent, now):
            sent[each.id] = now
    at = sorted(when for id, when in sent.items() if id.startswith("digest"))
    assert len(at) == 3 and all((when - AT) % DAY < 7 * 60.0 for when in at)
    assert digests(DAILY, AT - 1.0) == [] and digests(DAILY, AT + HOUR) == []
    assert digests(replace(DAILY, digest=""), AT) == []
    assert digests(replace(DAILY, trained=False), AT) == [], "nothing to tell of yet"
    assert digests(replace(DAILY, job=Job("failed", AT - 60.0)), AT) == [], "its end was told"


# -- nodes, money and time -----------------------------------------------------------------------


def test_a_shortage_is_told_when_it_lasts() -> None:
    assert kinds(replace(IDLE, short_since=NOW - 899)) == []
    (found,) = told(replace(IDLE, nodes=1, short_since=NOW - 900))
    assert found.kind == "short" and "has had 1 node, and needs 2." in found.text
    assert "15 minutes" in found.text and "spotelastic events demo" in found.text


def test_a_shortage_that_comes_again_is_told_once_an_hour() -> None:
    first = told(replace(IDLE, short_since=NOW - 5000))[0].id
    again = replace(IDLE, short_since=NOW - 1000)
    assert kinds(again, {first: NOW - HOUR + 1}) == []
    assert kinds(again, {first: NOW - HOUR}) == ["short"]


def test_the_budget_is_told_at_its_share_and_again_for_another_limit() -> None:
    capacity = Capacity(max_cost=10.0)
    facts = replace(IDLE, spent=7.99, per_hour=1.0, capacity=capacity)
    assert kinds(facts) == []
    (found,) = told(replace(facts, spent=8.0))
    assert found.kind == "budget" and "80%" in found.title
    assert "$8.00 of the $10.00" in found.text and "2.0 hours" in found.text
    more = replace(facts, spent=19.0, capacity=Capacity(max_cost=20.0))
    assert kinds(more, {found.id: NOW}) == ["budget"]


def test_a_limit_without_a_price_is_told_without_dividing_by_it() -> None:
    (found,) = told(replace(IDLE, spent=10.0, capacity=Capacity(max_cost=10.0)))
    assert "$0.00 is left. " in found.text


@pytest.mark.parametrize(
    ("within", "before"), [(None, HOUR), (100 * HOUR, HOUR), (5 * HOUR, HOUR / 2), (600.0, 300.0)]
)
def test_a_deadline_is_near_by_what_the_job_was_given(within: float | None, before: float) -> None:
    capacity = Capacity(deadline=NOW + before, within=within)
    assert kinds(replace(IDLE, capacity=capacity)) == ["deadline"]
    assert kinds(replace(IDLE, capacity=replace(capacity, deadline=NOW + before + 1))) == []


def test_certificates_are_told_with_what_renews_them() -> None:
    day = 24 * HOUR
    facts = replace(IDLE, validity=Validity(NOW + 10 * day, NOW + 5000 * day))
    (found,) = told(facts)
    assert found.kind == "certificates" and "`spotelastic up` again" in found.text
    assert kinds(replace(IDLE, validity=Validity(NOW + 100 * day, NOW + 5000 * day))) == []


# -- how often -----------------------------------------------------------------------------------


def test_nobody_is_flooded_but_the_end_is_told() -> None:
    before = {f"begun {number}": NOW - number for number in range(PER_HOUR)}
    assert kinds(replace(TRAINS, job=Job("pending", NOW)), before) == []
    assert kinds(ended("failed"), before) == ["ended"]
    later = {id: at - HOUR for id, at in before.items()}
    assert kinds(replace(TRAINS, job=Job("pending", NOW)), later) == ["begun"]


def test_what_is_on_record_is_not_told_again() -> None:
    facts = replace(TRAINS, short_since=NOW - 5000, spent=9.0, capacity=Capacity(max_cost=10.0))
    first = told(facts)
    assert len(first) == 3
    events = [Event(NOW, "round", "", data={"id": "x"}), *(record(each, NOW) for each in first)]
    assert told(facts, told_before(events)) == []


def test_every_text_says_what_to_do_and_fits() -> None:
    facts = replace(
        TRAINS,
        short_since=0.0,
        spent=9.0,
        per_hour=1.0,
        capacity=Capacity(max_cost=10.0, deadline=NOW + 60),
        validity=Validity(NOW, NOW),
        rehearsal=DIFFERS,
    )
    found = [*told(facts), *told(ended("failed", failure=FAILURE))]
    assert {each.kind for each in found} == {
        *("begun", "differs", "short", "budget", "deadline", "certificates", "ended")
    }
    for each in found:
        assert "spotelastic " in each.text and each.title.startswith("demo")
        assert len(each.text) <= LONGEST and "\n" not in each.title
