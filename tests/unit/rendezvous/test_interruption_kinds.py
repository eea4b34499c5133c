"""Interruption kinds: each has its traits, and a word of a newer node is neither lost nor fatal."""

import pytest
from support.clusters.job_history import Story, memory, only

from spotelastic.cli.render import tables
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.notice import Drain, Notice
from spotelastic.model.progress import Event
from spotelastic.store.codec import decode, encode

NEWER = "maintenance_window"


@pytest.mark.parametrize("kind", list(InterruptionKind))
def test_every_kind_has_traits_and_may_be_stored(kind: InterruptionKind) -> None:
    assert kind.is_known and kind.traits.label and kind.traits.event
    assert not kind.traits.has_deadline or kind.traits.drains, "else nothing goes by its deadline"
    stored = Drain("a", Notice(kind, "a", "imds", 1.0, 2.0, 9.0))
    assert decode(encode(stored), Drain).notice.kind is kind


def test_a_kind_of_a_newer_node_is_kept_as_it_is_and_drains() -> None:
    data = encode(Drain("a", Notice(InterruptionKind(NEWER), "a", "imds", 1.0, 2.0, 9.0)))
    read = decode(data, Drain)
    assert not read.notice.kind.is_known
    assert encode(read) == data, "another node may know it"
    assert read.notice.kind.traits.drains and read.notice.kind.traits.has_deadline
    assert read.notice.line == "a will be taken away in 7 s (from its metadata service)"


def test_a_row_and_an_event_of_a_newer_kind_are_shown_by_its_name() -> None:
    story = Story().propose("start", "ab").train(30, after=1.0)
    story.tell("notice", "b", kind=NEWER, at=story.now, seen_at=story.now).end()
    story.propose("drain", "ac", about="b", resume=memory(30)).train(60, after=1.0)
    row = only(story.report())
    assert (row.kind, row.kind.traits.label) == (NEWER, "maintenance window")
    assert "notice" in tables.event_line(Event(1.0, "notice", "b will go", "b", {"kind": NEWER}))


@pytest.mark.parametrize(
    ("notice", "event", "line"),
    [
        (
            Notice(InterruptionKind.SPOT_INTERRUPTION, "a", "imds", 1.0, 2.0, 17.0),
            *("notice", "a will be taken away in 15 s (from its metadata service)"),
        ),
        (
            Notice(InterruptionKind.SPOT_INTERRUPTION, "a", "sqs", 1.0, 2.0, 121.0),
            *("notice", "a will be taken away (from the event bus)"),
        ),
        (
            Notice(InterruptionKind.REBALANCE, "a", "sqs", 1.0, 2.0),
            *("rebalance", "a may be interrupted soon (from the event bus)"),
        ),
        (
            Notice(InterruptionKind.LEAVE, "a", "signal", 1.0, 2.0, 12.0),
            *("leave", "a was asked to leave"),
        ),
    ],
)
def test_observers_record_a_notice_alike(notice: Notice, event: str, line: str) -> None:
    recorded = notice.event(5.0)
    assert (recorded.at, recorded.kind, recorded.message) == (5.0, event, line)
    assert recorded.data["kind"] == notice.kind
