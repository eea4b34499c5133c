"""Log lines leave in batches that CloudWatch takes, in order, and survive its refusals."""

from threading import Event
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.aws.fake_services import fake_aws, refusal
from support.processes.patience import PATIENT

from spotelastic.aws.node.log_lines import (
    BATCH_BYTES,
    BATCH_LINES,
    BATCH_SPAN,
    LINE_BYTES,
    OVERHEAD,
    Backlog,
    batches,
    pieces,
)
from spotelastic.aws.node.log_shipper import LogShipper
from spotelastic.errors import Unavailable

HOUR = 3600 * 1000
DAY = 24 * HOUR
MOST_BYTES, MOST_LINES = 2**20, 10_000
"""What CloudWatch takes in one call."""
LARGEST = 256 * 1024
"""Most bytes of a line for CloudWatch, with its overhead."""


def test_a_line_is_divided_between_characters_whatever_their_bytes() -> None:
    for character in ("x", "é", "語", "🦘"):
        for before in range(5):
            text = "." * before + character * (LINE_BYTES // len(character.encode()) + 2)
            cut = list(pieces(text))
            assert "".join(cut) == text
            assert len(cut) == 2
            assert all(len(piece.encode()) <= LINE_BYTES for piece in cut)


@given(st.text(st.characters(codec=None), max_size=30), st.integers(0, 12_000))
def test_pieces_are_what_cloudwatch_takes_of_any_text(text: str, times: int) -> None:
    whole = text * times
    cut = list(pieces(whole))
    assert all(piece.strip() and len(piece.encode()) <= LINE_BYTES for piece in cut)
    if whole.strip() and len(whole.encode(errors="replace")) <= LINE_BYTES:
        assert cut == [whole.encode(errors="replace").decode()]


def test_what_is_empty_is_left_out() -> None:
    assert [list(pieces(text)) for text in ("", "  ", "\t\n")] == [[], [], []]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3 * DAY),
            st.sampled_from(["x", "é", "語", "🦘"]),
            st.integers(1, LINE_BYTES // 4),
        )
    )
)
def test_batches_keep_order_and_stay_within_the_limits(drawn: list[tuple[int, str, int]]) -> None:
    lines = sorted(((at, text * times) for at, text, times in drawn), key=lambda line: line[0])
    divided = batches(lines)
    assert [line for batch in divided for line in batch] == lines
    for batch in divided:
        assert 0 < len(batch) <= BATCH_LINES < MOST_LINES
        size = sum(len(text.encode()) + OVERHEAD for _, text in batch)
        assert size <= BATCH_BYTES < MOST_BYTES
        assert batch[-1][0] - batch[0][0] <= BATCH_SPAN < DAY


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 100)), max_size=30))
def test_a_backlog_keeps_the_newest_lines_and_says_how_many_are_missing(
    drawn: list[tuple[str, int]],
) -> None:
    added = [(stream, (at, "x" * length)) for at, (stream, length) in enumerate(drawn)]
    backlog = Backlog(10, 500)
    for stream, line in added:
        backlog.add(stream, line)
    taken = backlog.take()
    kept = [each for each in taken if not each[1][1].startswith("[spotelastic]")]
    assert kept == added[len(added) - len(kept) :], "the newest, in order"
    assert len(kept) <= 10
    assert sum(len(text) + OVERHEAD for _, (_, text) in kept) <= 500
    for stream in {stream for stream, _ in kept}:
        missing = sum(each[0] == stream for each in added) - sum(s == stream for s, _ in kept)
        told = [line[1] for s, line in taken if s == stream and line[1].startswith("[spot")]
        assert [each.split()[3] for each in told] == ([str(missing)] if missing else [])
    assert backlog.take() == []


def test_of_lines_that_are_put_back_the_oldest_are_dropped() -> None:
    backlog = Backlog(3, 1000)
    for at in range(3):
        backlog.add("s", (at, f"line {at}"))
    taken = backlog.take()
    backlog.add("s", (3, "line 3"))
    backlog.put_back(taken)
    texts = [text for _, (_, text) in backlog.take()]
    assert texts == ["[spotelastic] missing here: 1 line", "line 1", "line 2", "line 3"]


class Service:
    """CloudWatch Logs that does not answer the first `failures` times, and refuses texts."""

    def __init__(self, failures: int = 0, refused: str = "", code: str = "") -> None:
        self.failures = failures
        self.refused = refused
        self.code = code
        self.streams: dict[str, list[str]] = {}
        self.failed, self.arrived = Event(), Event()

    def create_log_stream(self, *, logGroupName: str, logStreamName: str) -> None:
        assert logStreamName not in self.streams
        self.streams[logStreamName] = []

    def put_log_events(
        self, *, logGroupName: str, logStreamName: str, logEvents: list[dict[str, Any]]
    ) -> dict[str, Any]:
        if self.failures:
            self.failures -= 1
            self.failed.set()
            raise Unavailable("busy")
        if logStreamName not in self.streams:
            self.failed.set()
            raise refusal("ResourceNotFoundException")
        if self.refused and any(self.refused in event["message"] for event in logEvents):
            self.failed.set()
            raise refusal(self.code)
        assert all(len(event["message"].encode()) + OVERHEAD < LARGEST for event in logEvents)
        self.streams[logStreamName] += [event["message"] for event in logEvents]
        self.arrived.set()
        return {}


def test_lines_arrive_by_stream_and_in_order() -> None:
    service = Service()
    shipper = LogShipper(fake_aws(logs=service), "group")
    for number in range(5):
        shipper.write("n/rank-0", f"line {number}")
    shipper.write("n/rank-1", "other")
    shipper.write("n/rank-1", "  ")
    shipper.close(PATIENT)
    assert service.streams == {
        "n/rank-0": [f"line {number}" for number in range(5)],
        "n/rank-1": ["other"],
    }


def test_what_could_not_be_sent_is_sent_later_and_first() -> None:
    service = Service(failures=1)
    shipper = LogShipper(fake_aws(logs=service), "group")
    shipper.write("n/rank-0", "before")
    assert service.failed.wait(PATIENT)
    shipper.write("n/rank-0", "after")
    shipper.close(PATIENT)
    assert service.streams == {"n/rank-0": ["before", "after"]}


def test_a_line_that_is_too_long_arrives_in_pieces() -> None:
    service = Service()
    shipper = LogShipper(fake_aws(logs=service), "group")
    text = "語" * 100_000
    shipper.write("n/rank-0", text)
    shipper.write("n/rank-0", "a file name: \udcff")
    shipper.close(PATIENT)
    *cut, last = service.streams["n/rank-0"]
    assert "".join(cut) == text
    assert last == "a file name: ?"


@pytest.mark.parametrize("code", ["InvalidParameterException", "SomethingNewException"])
def test_lines_that_are_refused_for_good_are_told_once_and_hold_up_no_others(
    code: str, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service(refused="bad", code=code)
    shipper = LogShipper(fake_aws(logs=service), "group")
    for _ in range(2):
        service.failed.clear()
        shipper.write("n/rank-0", "bad")
        assert service.failed.wait(PATIENT)
    shipper.write("n/rank-0", "good at last")
    shipper.close(PATIENT)
    assert service.streams == {"n/rank-0": ["good at last"]}
    (told,) = [record.message for record in caplog.records]
    assert told.startswith("logs: 1 line of n/rank-0 cannot all be sent, which is told once: can")
    assert code in told


def test_a_role_that_is_not_known_yet_costs_no_line(caplog: pytest.LogCaptureFixture) -> None:
    service = Service(refused="line", code="AccessDeniedException")
    shipper = LogShipper(fake_aws(logs=service), "group", longest_pause=0.0)
    shipper.write("n/rank-0", "line")
    assert service.failed.wait(PATIENT)
    service.failed.clear()
    assert service.failed.wait(PATIENT), "it is tried again"
    service.refused = ""
    shipper.close(PATIENT)
    assert service.streams == {"n/rank-0": ["line"]}
    assert len(caplog.records) == 1, "what is the same is told once"


def test_a_stream_that_somebody_deletes_is_made_again() -> None:
    service = Service()
    shipper = LogShipper(fake_aws(logs=service), "group", longest_pause=0.0)
    shipper.write("n/rank-0", "one")
    assert service.arrived.wait(PATIENT)
    del service.streams["n/rank-0"]
    shipper.write("n/rank-0", "two")
    shipper.close(PATIENT)
    assert service.streams == {"n/rank-0": ["two"]}


def test_what_is_left_at_the_end_is_tried_again_until_the_time_is_up() -> None:
    service = Service(failures=2)
    shipper = LogShipper(fake_aws(logs=service), "group")
    shipper.write("n/rank-0", "last words")
    shipper.close(PATIENT)
    assert service.streams == {"n/rank-0": ["last words"]}
